"""Durations and sizes with units, in settings of brokers and topics."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.config import BrokerConfig, TopicConfig, changed, load_broker_config, rows
from cordwood.errors import ConfigError, InvalidConfig
from cordwood.settings.units import DURATIONS_MS, SIZES, in_base_unit, parse_duration_ms, parse_size


@pytest.mark.parametrize(
    ("text", "ms"),
    [("500ms", 500), ("90s", 90_000), ("15m", 900_000), ("12h", 43_200_000), ("1.5h", 5_400_000),
     ("7d", 604_800_000), (" 7 D ", 604_800_000)],
)  # fmt: skip
def test_durations_are_milliseconds(text, ms):
    """A duration with a unit is exact, in whole milliseconds."""
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "size"),
    [("1B", 1), ("64KiB", 65_536), ("512MiB", 1 << 29), ("10GB", 10**10), ("1.5 gib", 3 << 29),
     ("2TiB", 1 << 41), ("3kB", 3000)],
)  # fmt: skip
def test_sizes_are_bytes(text, size):
    """KiB counts by 1024 and kB by 1000; upper and lower case are the same."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["7x", "d", "1d2h", "-7d", "7 days", "1e3s", "0.0001s", ""])
def test_what_is_no_duration_is_refused(text):
    """The error shows how to write one."""
    with pytest.raises(ValueError, match="not a"):
        parse_duration_ms(text)


@given(st.integers(0, 10**15), st.sampled_from(sorted(DURATIONS_MS)))
def test_any_whole_duration_is_exact(count, unit):
    """No float is involved, however large the number is."""
    assert parse_duration_ms(f"{count}{unit}") == count * DURATIONS_MS[unit]


@given(st.text(max_size=12))
def test_any_text_is_a_size_or_a_value_error(text):
    """Parsing raises nothing else."""
    try:
        assert parse_size(text) >= 0
    except ValueError:
        assert True
    assert SIZES["mib"] == 1 << 20


@pytest.mark.parametrize("table", [TopicConfig, BrokerConfig])
def test_every_duration_and_size_of_the_tables_takes_units(table):
    """A setting with ms or bytes in its name takes a unit; no other setting does."""
    for name, (field, kind, row) in rows(table).items():
        words = name.split(".")
        unit = "1h" if "ms" in words else "1MiB" if "bytes" in words else None
        if unit is None or kind != "int":
            assert in_base_unit(name, "7d") == "7d"
            continue
        amount = 3_600_000 if unit == "1h" else 1 << 20
        if (row.low or 0) <= amount <= (row.high or amount) and row.check is None:
            assert getattr(changed(table(), {name: unit}), field) == amount, name


def test_a_size_is_not_a_duration():
    """The unit must suit the setting; the error names the setting and how to write it."""
    with pytest.raises(
        InvalidConfig, match=r"segment.bytes: '7d' is not a size; write bytes, or 6"
    ):
        changed(TopicConfig(), {"segment.bytes": "7d"})
    with pytest.raises(InvalidConfig, match=r"retention.ms: '1GB' is not a duration"):
        changed(TopicConfig(), {"retention.ms": "1GB"})


def test_flags_variables_and_files_take_units(tmp_path):
    """Everywhere a setting can be given, with Kafka's broker-wide names too."""
    (tmp_path / "c.toml").write_text('"monitor.interval.ms" = "5s"\nretention = {ms = "2d"}\n')
    loaded = load_broker_config(
        {"line.bytes.max": "64KiB", "log.retention.hours": "3d"},
        {"CORDWOOD_IDLE_TIMEOUT_MS": "1h"},
        str(tmp_path / "c.toml"),
    )
    assert (loaded.monitor_interval_ms, loaded.line_bytes_max) == (5_000, 65_536)
    assert loaded.idle_timeout_ms == 3_600_000
    with pytest.raises(ConfigError, match="is not a duration"):
        load_broker_config({"monitor.interval.ms": "5 parsecs"}, {}, None)
