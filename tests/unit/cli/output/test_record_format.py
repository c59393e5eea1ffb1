"""The percent format of ``--record-format``, and field separators."""

import pytest
import typer

from cordwood.cli.output.record_format import compile_format, parse_separator
from cordwood.model import Header, Record, TopicPartition

TP = TopicPartition("t", 2)
RECORD = Record(7, 1_700_000_000_123, b"k", b"\xff\x00", (Header("a", b"1"), Header("b", None)))


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        (r"%t/%p/%o %k\n", b"t/2/7 k\n"),
        (r"%v{hex} %V %K", b"ff00 2 1"),
        (r"%v{base64}", b"/wA="),
        (r"%h", b"a=1,b="),
        (r"%T %d", b"1700000000123 2023-11-14T22:13:20.123Z"),
        (r"100%% \x41\t\\", b"100% A\t\\"),
    ],
)
def test_letters_show_what_rpk_users_expect(form, shown):
    """Each format letter and modifier prints what ``rpk`` prints."""
    assert compile_format(form)(TP, RECORD) == shown


def test_null_is_empty_and_its_size_minus_one():
    """A null prints as empty text with size -1, so that it differs from an empty value."""
    null = Record(0, 0, None, None)
    assert compile_format("[%k|%v|%K|%V]")(TP, null) == b"[||-1|-1]"


@pytest.mark.parametrize("form", ["%y", "%v{rot13}", "%", "\\q"])
def test_format_that_means_nothing_is_refused(form):
    """An unknown letter, modifier or escape is refused with a message that names it."""
    with pytest.raises(typer.BadParameter, match="is not a known"):
        compile_format(form)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(":", b":"), (r"\t", b"\t"), (r"\x1f", b"\x1f"), (r"a\\t", rb"a\t"), ("ä", "ä".encode())],
)
def test_a_separator_may_be_written_with_the_escapes_of_a_format(typed, meant):
    r"""A separator may use escapes: ``-K '\t'`` means a tab, as in kcat."""
    assert parse_separator(typed) == meant
