"""Parsing of the offsets and times that users type on the command line."""

import pytest
import typer

from cordwood.cli.options.offset_spec import Anchor, OffsetSpec, parse_place, parse_span, parse_time

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("start", OffsetSpec(Anchor.START)),
        ("end", OffsetSpec(Anchor.END)),
        ("47", OffsetSpec(Anchor.OFFSET, 47)),
        ("-3", OffsetSpec(Anchor.FROM_END, 3)),
        ("@1700000000000", OffsetSpec(Anchor.TIME, NOW_MS)),
    ],
)
def test_place_is_read_as_rpk_users_write_it(text, place):
    """A position is a word, an offset, a count from the end, or a time after ``@``."""
    assert parse_place(text) == place


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("-1h", NOW_MS - 3_600_000),
        ("-90s", NOW_MS - 90_000),
        ("5", 5),
        ("2023-11-14T22:13:20Z", NOW_MS),
    ],
)
def test_time_is_ago_or_milliseconds_or_iso(text, ms):
    """A relative time, milliseconds and ISO 8601 all parse to milliseconds since the epoch."""
    assert parse_time(text, NOW_MS) == ms


def test_span_of_times_is_cut_where_both_halves_are_times():
    """ISO times contain colons, so a span is split at the colon that leaves a time on each side."""
    first, last = parse_span("@2023-11-14T22:13:20Z:2023-11-14T23:13:20Z")
    assert last == OffsetSpec(Anchor.TIME, first.value + 3_600_000)


@pytest.mark.parametrize(
    "text", [str(2**63), f"-{2**63}", f"@{2**63}", "9" * 5000, "@-9" + "9" * 40 + "d"]
)
def test_a_number_too_large_for_its_field_is_refused(text):
    """An offset or a time that does not fit in 64 bits is refused without a traceback."""
    with pytest.raises(typer.BadParameter, match="too large"):
        parse_place(text)


@pytest.mark.parametrize("text", ["", "+2", "yesterday", "@", "@soon", "1.5"])
def test_place_that_means_nothing_is_refused(text):
    """The error for an unparsable position lists the accepted forms."""
    with pytest.raises(typer.BadParameter, match="use "):
        parse_place(text)
