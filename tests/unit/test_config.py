"""Settings: one table defines parsing, formatting, defaults, precedence and errors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.config import (
    HOUR_MS,
    KEEP_ALL,
    BrokerConfig,
    Row,
    TopicConfig,
    Value,
    changed,
    environment_name,
    format_value,
    load_broker_config,
    nearest,
    overrides,
    parse_value,
    rows,
)
from cordwood.errors import ConfigError, InvalidConfig
from cordwood.settings.kafka_names import BROKER_NAMES

TABLES = (TopicConfig, BrokerConfig)
SETTINGS = [
    pytest.param(kind, row, id=name)
    for table in TABLES
    for name, (_, kind, row) in rows(table).items()
]
PLAIN_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)


def values_of(kind: str, row: Row) -> st.SearchStrategy[Any]:
    """Generate values that the row allows."""
    if kind == "bool":
        return st.booleans() if row.check is None else st.just(row.default)
    if kind == "frozenset[str]":
        return st.frozensets(st.sampled_from(row.choices or ("0:0", "12:3", "*")))
    if kind == "str" and row.check is None:
        return st.sampled_from(row.choices) if row.choices else PLAIN_TEXT
    if kind == "str":
        return st.just(row.default)
    if kind == "float":
        return st.floats(row.low, row.high, allow_nan=False, allow_infinity=False)
    low = -KEEP_ALL if row.low is None else int(row.low)
    numbers = st.integers(low, KEEP_ALL if row.high is None else int(row.high))
    return numbers if row.check is None else numbers.filter(lambda n: not row.check(n))


@pytest.mark.parametrize(("kind", "row"), SETTINGS)
@given(data=st.data())
def test_what_is_formatted_parses_to_the_same_value(kind: str, row: Row, data: st.DataObject):
    """For every setting, parse(format(value)) is the value."""
    value = data.draw(values_of(kind, row))
    assert parse_value(kind, row, format_value(row, value)) == value


@pytest.mark.parametrize(("kind", "row"), SETTINGS)
def test_default_of_every_setting_is_a_value_it_allows(kind: str, row: Row):
    """Every default is a valid value of its setting."""
    assert parse_value(kind, row, format_value(row, row.default)) == row.default


@pytest.mark.parametrize("table", TABLES)
def test_field_default_and_row_default_are_one(table: type[TopicConfig | BrokerConfig]):
    """The dataclass field has the default of its row."""
    for field_name, _, row in rows(table).values():
        assert getattr(table(), field_name) == row.default


@pytest.mark.parametrize("table", TABLES)
def test_every_setting_is_explained_in_a_sentence(table: type[TopicConfig | BrokerConfig]):
    """Every setting is described by a sentence, for docs/settings.md."""
    for name, (_, _, row) in rows(table).items():
        assert row.doc[0].isupper(), name
        assert row.doc.endswith("."), name


@pytest.mark.parametrize("text", [-1, "-1"])
def test_minus_one_keeps_all(text: object):
    """The value -1 means no limit, and is shown as -1 again."""
    config = changed(TopicConfig(), {"retention.ms": text})
    assert config.retention_ms == KEEP_ALL
    assert overrides(config) == {"retention.ms": "-1"}


@pytest.mark.parametrize("text", [-1, "-1", str(KEEP_ALL)])
def test_no_limit_is_shown_as_kafka_writes_it(text: object):
    """Where Kafka has no -1, no limit is shown as the largest int64, and -1 is accepted too."""
    config = changed(TopicConfig(flush_ms=5), {"flush.ms": text})
    assert config.flush_ms == KEEP_ALL
    assert format_value(rows(TopicConfig)["flush.ms"][2], config.flush_ms) == str(KEEP_ALL)


def test_minus_one_is_refused_where_there_is_no_limit_to_lift():
    """The value -1 is refused by settings that cannot be unlimited."""
    with pytest.raises(InvalidConfig, match=re.escape("segment.bytes: -1 is below 14")):
        changed(TopicConfig(), {"segment.bytes": "-1"})


def test_unknown_setting_is_refused_with_the_nearest_name():
    """An unknown setting is refused with the nearest name."""
    with pytest.raises(InvalidConfig, match=r"retention\.sm; did you mean retention\.ms\?"):
        changed(TopicConfig(), {"retention.sm": "1"})


def test_no_name_is_guessed_when_none_is_near():
    """No name is suggested if none is similar."""
    assert nearest("zzzzqqqq", rows(TopicConfig)) == ""


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("segment.bytes", "big", "'big' is not a size; write bytes, or 64KiB"),
        ("segment.bytes", True, "True is not a whole number"),
        ("segment.bytes", 1.5, "1.5 is not a whole number"),
        ("segment.bytes", str(2**31), "2147483648 is above 2147483647"),
        ("segment.ms", "0", "0 is below 1"),
        ("segment.ms", str(2**63), "9223372036854775808 does not fit in 64 bits"),
        ("min.cleanable.dirty.ratio", "half", "'half' is not a number"),
        ("min.cleanable.dirty.ratio", "1.01", "1.01 is above 1"),
        ("min.cleanable.dirty.ratio", None, "None is not a number"),
        ("flush.mode", "later", "'later' is not one of broker, fsync, os"),
        ("cleanup.policy", "delete,burn", "is not one of delete, compact, consume"),
        ("remote.storage.enable", "true", "there is no tiered storage"),
        ("leader.replication.throttled.replicas", "0:1,1", "'1' is not partition:broker or *"),
        ("compression.gzip.level", "0", "use 1 to 9, or -1"),
        ("min.insync.replicas", "0", "0 is below 1"),
    ],
)
def test_bad_value_is_refused_with_setting_and_reason(name: str, text: object, complaint: str):
    """A bad value is refused with the name of the setting, the value and what is expected."""
    with pytest.raises(InvalidConfig) as refusal:
        changed(TopicConfig(), {name: text})
    assert str(refusal.value).startswith(f"{name}: ")
    assert complaint in str(refusal.value)


def test_not_a_number_is_no_ratio():
    """NaN is refused, although comparisons with the bounds do not exclude it."""
    with pytest.raises(InvalidConfig, match=r"min\.cleanable\.dirty\.ratio"):
        changed(TopicConfig(), {"min.cleanable.dirty.ratio": "nan"})


def test_neither_true_nor_false_is_refused():
    """Only true and false are booleans. ``yes`` is refused."""
    with pytest.raises(InvalidConfig, match="'yes' is not true or false"):
        changed(BrokerConfig(), {"auto.create.topics": "yes"})


def test_one_bad_setting_changes_nothing():
    """Several changes are applied together or not at all."""
    config = TopicConfig()
    with pytest.raises(InvalidConfig):
        changed(config, {"segment.ms": "5", "segment.bytes": "none"})
    assert config == TopicConfig()


def test_policies_combine_in_one_setting():
    """A set may be given as text or as a list. Spaces are ignored."""
    for output in ("compact, delete", ["compact", "delete"], "delete,compact"):
        config = changed(TopicConfig(), {"cleanup.policy": output})
        assert config.cleanup_policy == {"compact", "delete"}
        assert overrides(config) == {"cleanup.policy": "delete,compact"}


def test_overrides_rebuild_the_config():
    """The overrides of a topic restore its config, and defaults are not stored."""
    config = changed(TopicConfig(), {"segment.ms": 5, "retention.bytes": 10, "flush.mode": "os"})
    assert changed(TopicConfig(), overrides(config)) == config
    assert overrides(TopicConfig()) == {}


def output_of(
    tmp_path: Path, *, flag: str | None = None, env: str | None = None, file: str | None = None
) -> str:
    """Return the ingress topic that applies when it is set by flag, environment and file."""
    path = None
    if file:
        path = tmp_path / "cordwood.toml"
        path.write_text(f'[ingress]\ntopic = "{file}"\n')
    environ = {environment_name("ingress.topic"): env} if env else {}
    config = load_broker_config({"ingress.topic": flag}, environ, str(path) if path else None)
    return config.ingress_topic


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path):
    """A flag overrides the environment, which overrides the file, which overrides the default."""
    assert output_of(tmp_path) == "append"
    assert output_of(tmp_path, file="f") == "f"
    assert output_of(tmp_path, file="f", env="e") == "e"
    assert output_of(tmp_path, file="f", env="e", flag="g") == "g"


def test_environment_of_other_programs_is_ignored():
    """Environment variables that are no setting are ignored."""
    assert load_broker_config({}, {"CORDWOOD_BROKER": "x", "HOME": "/"}, None) == BrokerConfig()


def test_settings_of_a_file_may_be_nested_or_dotted(tmp_path: Path):
    """A TOML file may use tables or dotted keys."""
    path = tmp_path / "c.toml"
    path.write_text('durability = "os"\ningress.buffer = 7\n[line.bytes]\nmax = 100\n')
    config = load_broker_config({}, {}, str(path))
    assert (config.durability, config.ingress_buffer, config.line_bytes_max) == ("os", 7, 100)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("durability = ", "is not TOML"),
        ('durabilty = "os"', "did you mean durability?"),
        ('durability = "never"', "durability: 'never' is not one of fsync, os"),
    ],
)
def test_bad_file_stops_the_start_and_is_named(tmp_path: Path, text: str, complaint: str):
    """A bad config file raises ``ConfigError`` with the file's path."""
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refusal:
        load_broker_config({}, {}, str(path))
    assert complaint in str(refusal.value)
    assert str(path) in str(refusal.value)


def test_missing_file_is_named(tmp_path: Path):
    """A missing config file raises ``ConfigError``."""
    with pytest.raises(ConfigError, match="there is no config file at"):
        load_broker_config({}, {}, str(tmp_path / "absent.toml"))


def test_environment_name_is_the_setting_shouted():
    """The environment variable of a setting is its name in upper case with ``CORDWOOD_``."""
    assert environment_name("segment.bytes") == "CORDWOOD_SEGMENT_BYTES"


def test_config_cannot_be_changed_in_place():
    """A config is immutable."""
    config: Any = TopicConfig()
    value: Value = 1
    with pytest.raises(AttributeError):
        config.segment_bytes = value


# --- broker-wide defaults of topic settings -------------------------------------------------------


def default_of(tmp_path: Path, field: str, *, file: str = "", **given: object) -> object:
    """Load a broker's settings; variables are upper case, flags lower. Return a topic default."""
    path = tmp_path / "defaults.toml"
    path.write_text(file)
    environ = {name: str(value) for name, value in given.items() if name.isupper()}
    flags = {name.replace("_", "."): value for name, value in given.items() if name.islower()}
    config = load_broker_config(flags, environ, str(path) if file else None)
    return getattr(config.topic_defaults.config, field)


def test_topic_default_is_given_by_file_variable_and_flag(tmp_path: Path):
    """A topic setting among the broker's is the default of topics, with the same precedence."""
    file = "segment.entries = 1\n"
    assert default_of(tmp_path, "segment_entries") == TopicConfig().segment_entries
    assert default_of(tmp_path, "segment_entries", file=file) == 1
    variable = {"CORDWOOD_SEGMENT_ENTRIES": 2}
    assert default_of(tmp_path, "segment_entries", file=file, **variable) == 2
    assert default_of(tmp_path, "segment_entries", file=file, **variable, segment_entries=3) == 3


def test_kafkas_name_of_a_default_means_the_same(tmp_path: Path):
    """``log.segment.bytes`` is ``segment.bytes``, in every source; hours are milliseconds."""
    assert default_of(tmp_path, "segment_bytes", file="[log.segment]\nbytes = 1000\n") == 1000
    assert default_of(tmp_path, "segment_bytes", CORDWOOD_LOG_SEGMENT_BYTES=2000) == 2000
    assert default_of(tmp_path, "segment_bytes", log_segment_bytes=3000) == 3000
    assert default_of(tmp_path, "retention_ms", file="log.retention.hours = 2\n") == 2 * HOUR_MS
    assert default_of(tmp_path, "retention_ms", file="log.retention.hours = -1\n") == KEEP_ALL
    file, variable = "log.segment.bytes = 1000\n", {"CORDWOOD_SEGMENT_BYTES": 2000}
    assert default_of(tmp_path, "segment_bytes", file=file, **variable) == 2000


@pytest.mark.parametrize("name", sorted(BROKER_NAMES))
def test_every_name_of_kafka_is_a_default_of_a_topic_setting(name: str):
    """Each name sets its topic setting, and no name is also another setting's."""
    assert name not in rows(BrokerConfig)
    assert name not in rows(TopicConfig)
    field_name, kind, row = rows(TopicConfig)[BROKER_NAMES[name].setting]
    value: object = 100 if kind == "int" and row.high is None else format_value(row, row.default)
    config = changed(BrokerConfig(), {name: value})
    assert config.topic_defaults.chosen == {BROKER_NAMES[name].setting}
    if kind == "int" and row.high is None:
        unit = BROKER_NAMES[name].unit_ms
        assert getattr(config.topic_defaults.config, field_name) == 100 * unit


def test_no_topic_setting_has_the_name_of_a_brokers():
    """One name has one meaning."""
    assert not set(rows(TopicConfig)) & set(rows(BrokerConfig))


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"segment_entries": "0"}, "segment.entries: 0 is below 1 (flag --segment-entries)"),
        (
            {"CORDWOOD_LOG_RETENTION_HOURS": "week"},
            (
                "log.retention.hours: 'week' is not a duration; write 90s, 15m, 12h or 7d "
                "(variable CORDWOOD_LOG_RETENTION_HOURS)"
            ),
        ),
        (
            {"file": "cleanup.policy = 'shred'"},
            "cleanup.policy: 'shred' is not one of delete, compact, consume (file FILE)",
        ),
        (
            {"file": "segment.entris = 1"},
            "unknown setting segment.entris; did you mean segment.entries? (file FILE)",
        ),
        (
            {"file": "retention.ms = 1\nlog.retention.hours = 1"},
            (
                "retention.ms and log.retention.hours are the same setting; give one of them "
                "(file FILE)"
            ),
        ),
        (
            {"CORDWOOD_MAX_COMPACTION_LAG_MS": "5", "min_compaction_lag_ms": "9"},
            (
                "min.compaction.lag.ms (9) is above max.compaction.lag.ms (5) "
                "(flag --min-compaction-lag-ms)"
            ),
        ),
        (
            {"CORDWOOD_REMOTE_STORAGE_ENABLE": "true"},
            (
                "remote.storage.enable: there is no tiered storage; `cordwood archive` keeps old "
                "records elsewhere (variable CORDWOOD_REMOTE_STORAGE_ENABLE)"
            ),
        ),
    ],
)
def test_bad_default_is_one_sentence_with_setting_and_source(
    tmp_path: Path, given: dict[str, Any], complaint: str
):
    """A bad default, also in combination, raises ``ConfigError`` before anything is opened."""
    with pytest.raises(ConfigError) as refusal:
        default_of(tmp_path, "segment_entries", **given)
    assert str(refusal.value) == complaint.replace("FILE", str(tmp_path / "defaults.toml"))


def test_bad_value_is_blamed_on_its_own_source(tmp_path: Path):
    """With a file and a bad variable, the error names the variable."""
    path = tmp_path / "c.toml"
    path.write_text('durability = "os"\n')
    with pytest.raises(ConfigError, match=r"\(variable CORDWOOD_DURABILITY\)"):
        load_broker_config({}, {"CORDWOOD_DURABILITY": "never"}, str(path))


def test_chosen_defaults_are_among_the_brokers_overrides():
    """What a broker tells jobs of its settings includes the defaults of topics."""
    config = changed(BrokerConfig(), {"log.segment.bytes": "1000", "durability": "os"})
    assert overrides(config) == {"durability": "os", "segment.bytes": "1000"}
