"""File names, and the small text files of a partition directory."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from cordwood.errors import CorruptionError
from cordwood.log.format.epochs import (
    EpochStart,
    encode_epochs,
    epoch_end,
    parse_epochs,
    with_epoch,
    without_epochs_from,
)
from cordwood.log.format.layout import (
    DELETED,
    SWAP,
    FileKind,
    SegmentFile,
    encode_metadata,
    file_name,
    parse_file_name,
    parse_metadata,
    torn_suffix,
)
from cordwood.log.format.segment_stats import SegmentStats, encode_stats, parse_stats


@pytest.mark.parametrize("suffix", ["", DELETED, SWAP, ".cleaned", torn_suffix(1_700_000_000_000)])
@pytest.mark.parametrize("kind", FileKind)
def test_names_parse_as_they_were_made(kind, suffix):
    """A name is a 20-digit base offset, the file kind, and a suffix if the file is not live."""
    name = file_name(4711, kind, suffix)
    assert name == f"00000000000000004711{kind.value}{suffix}"
    assert parse_file_name(name) == SegmentFile(4711, kind, suffix)


@pytest.mark.parametrize(
    "name",
    ["", "4711.log", "0" * 19 + ".log", "0" * 21 + ".log", "0" * 20, "0" * 20 + ".txt",
     "x" * 20 + ".log", "0" * 20 + ".log.", "0" * 20 + ".log.swap.swap",
     "leader-epoch-checkpoint"],
)  # fmt: skip
def test_other_names_are_not_segments(name):
    """A name of any other form is not taken for a segment file."""
    assert parse_file_name(name) is None


def test_a_topic_id_is_written_as_kafka_does():
    """The topic id is URL-safe base64 without padding."""
    text = encode_metadata(UUID(int=0))
    assert text == b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA"
    topic_id = uuid4()
    assert parse_metadata(encode_metadata(topic_id)) == topic_id
    for wrong in (b"", text[:-1], text + b"A", b"version: 1" + text[10:]):
        with pytest.raises(CorruptionError):
            parse_metadata(wrong)


EPOCHS = (EpochStart(2, 0), EpochStart(5, 30), EpochStart(6, 30), EpochStart(9, 50))


def test_terms_parse_as_they_were_made():
    """The file holds a version, a count, and one leader epoch per line."""
    assert encode_epochs(EPOCHS) == b"0\n4\n2 0\n5 30\n6 30\n9 50\n"
    assert parse_epochs(encode_epochs(EPOCHS)) == EPOCHS
    assert parse_epochs(encode_epochs(())) == ()


@pytest.mark.parametrize("text", [b"", b"0\n", b"1\n0\n", b"0\n2\n1 0\n", b"0\n1\nx y\n",
                                  b"0\n2\n5 0\n4 9\n", b"0\n1\n1 2 3\n", b"\xff"])  # fmt: skip
def test_terms_that_cannot_be_are_refused(text):
    """A truncated or malformed epoch file is corruption."""
    with pytest.raises(CorruptionError):
        parse_epochs(text)


def test_a_term_ends_where_the_next_began():
    """A leader epoch ends where the next one starts, as Kafka's OffsetForLeaderEpoch defines."""
    assert epoch_end(EPOCHS, 2, 70) == (2, 30)
    assert epoch_end(EPOCHS, 4, 70) == (2, 30)
    assert epoch_end(EPOCHS, 5, 70) == (5, 30)
    assert epoch_end(EPOCHS, 9, 70) == (9, 70)
    assert epoch_end(EPOCHS, 10, 70) is None
    assert epoch_end(EPOCHS, 1, 70) == (1, 0)
    assert epoch_end((), 0, 70) is None


def test_terms_grow_and_are_cut():
    """Only a newer epoch is added; truncation removes epochs that start at the offset or later."""
    assert with_epoch(EPOCHS, 9, 60) is EPOCHS
    assert with_epoch(EPOCHS, 8, 60) is EPOCHS
    assert with_epoch(EPOCHS, 10, 60)[-1] == (10, 60)
    assert without_epochs_from(EPOCHS, 30) == EPOCHS[:1]


def test_stats_parse_as_they_were_encoded_or_not_at_all():
    """An incomplete stats file is ignored, because the stats can be computed again."""
    details = [
        SegmentStats(0, 5, 100, 4, -1, 7, 8, 16, 24, 1),
        SegmentStats(5, 5, 0, 0, -1, -1, 9, 0, 0, 0),
    ]
    text = encode_stats(details)
    assert parse_stats(text) == {0: details[0], 5: details[1]}
    for cut in range(len(text) - 1):
        found = parse_stats(text[:cut])
        assert found in ({}, {0: details[0], 5: details[1]}), cut
    assert parse_stats(b"\xff\n") == {}
