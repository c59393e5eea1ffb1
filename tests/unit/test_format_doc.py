"""The page docs/format.md agrees with the code: each example is decoded twice.

The broker's own code decodes it once. The second decoder uses only ``struct`` and what the page
says.
"""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path

import google_crc32c
import pytest

from cordwood.batch.header import BatchHeader, check_batches, parse_header
from cordwood.batch.records import decode_batch
from cordwood.config import MIB
from cordwood.log.format import layout
from cordwood.log.format.index import MemoryIndex
from cordwood.log.format.producers import Producers
from cordwood.log.format.segment_stats import encode_stats, parse_stats
from cordwood.log.read import published_offsets
from cordwood.log.read.published_offsets import Published
from cordwood.model import Header, Record

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "format.md").read_text()
EXAMPLES = dict(re.findall(r"<!-- example: (\S+) -->\n```text\n(.*?)```", PAGE, re.DOTALL))
NOON_MS = 1767225600000
RECORDS = [
    Record(7, NOON_MS, b"orders.new", b"hello", (Header("ts", b"0"), Header("n", b"1"))),
    Record(8, NOON_MS + 5, b"k", None),
]


def example(name: str) -> bytes:
    """Return the bytes of an example: the hex digits before the comment on each line."""
    return bytes.fromhex("".join(line.split("   ")[0] for line in EXAMPLES[name].splitlines()))


def varint(data: bytes, position: int) -> tuple[int, int]:
    """Decode a zig-zag varint as the page describes it. Return it and the next position."""
    number = shift = 0
    while True:
        byte = data[position]
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return number >> 1 ^ -(number & 1), position


def field(data: bytes, position: int) -> tuple[bytes | None, int]:
    """Decode a length, -1 for null, and that many bytes."""
    length, position = varint(data, position)
    if length < 0:
        return None, position
    return data[position : position + length], position + length


def records_by_hand(data: bytes, base_offset: int, base_ms: int, count: int) -> list[Record]:
    """Decode the records as the page describes them."""
    found, position = [], 61
    for _ in range(count):
        length, position = varint(data, position)
        end = position + length
        assert data[position] == 0, "attributes"
        time_delta, position = varint(data, position + 1)
        offset_delta, position = varint(data, position)
        key, position = field(data, position)
        value, position = field(data, position)
        header_count, position = varint(data, position)
        headers = []
        for _ in range(header_count):
            name, position = field(data, position)
            text, position = field(data, position)
            headers.append(Header((name or b"").decode(), text))
        assert position == end
        found.append(
            Record(base_offset + offset_delta, base_ms + time_delta, key, value, tuple(headers))
        )
    assert position == len(data)
    return found


def test_worked_batch_is_what_the_broker_reads():
    """The example batch passes the broker's checks and holds the described records."""
    data = example("batch")
    (header,) = check_batches(data, MIB)
    assert decode_batch(data) == RECORDS
    assert (header.producer_id, header.base_sequence, header.leader_epoch) == (4, 1, 2)


def test_worked_batch_can_be_read_from_the_page_alone():
    """Positions, widths and the checksum range of the example match the table on the page."""
    data = example("batch")
    rows = re.findall(r"^\| (\d+) \| (\d+)? *\| ([\w -]+?) \|", PAGE, re.MULTILINE)
    assert [int(position) for position, _, _ in rows] == [
        sum(int(width) for _, width, _ in rows[:i]) for i in range(len(rows))
    ]
    base, length, _, magic = struct.unpack_from(">qiib", data)
    (crc,) = struct.unpack_from(">I", data, 17)
    (base_ms,) = struct.unpack_from(">q", data, 27)
    (count,) = struct.unpack_from(">i", data, 57)
    assert (len(data), magic) == (12 + length, 2)
    assert google_crc32c.value(data[21:]) == crc
    assert records_by_hand(data, base, base_ms, count) == RECORDS


def test_time_index_of_the_example_is_its_last_entry():
    """Sealing the example's segment writes the time index of the example and no offset index."""
    index = MemoryIndex(7, 4096)
    index.add(parse_header(example("batch")), 0)
    index.seal()
    assert (index.encode_offsets(), index.encode_times()) == (b"", example("timeindex"))


def test_snapshot_of_the_example_names_its_producer():
    """The producer snapshot of the example is encoded by the code and decoded by hand."""
    data = example("snapshot")
    producers = Producers()
    producers.update(parse_header(example("batch")), NOON_MS + 5)
    assert producers.encode_snapshot() == data
    version, crc, count = struct.unpack_from(">hIi", data)
    assert (version, count, google_crc32c.value(data[6:])) == (1, 1, crc)
    assert struct.unpack_from(">qhiqiqiq", data, 10) == (4, 0, 2, 8, 1, NOON_MS + 5, -1, -1)


def test_stats_of_the_example_are_one_line():
    """The segment stats of the example encode to the same text, and match the batch."""
    text = EXAMPLES["facts"].encode()
    details = parse_stats(text)[7]
    assert encode_stats([details]) == text
    assert (details.end_offset, details.size_bytes, details.records) == (
        9,
        len(example("batch")),
        2,
    )
    assert not details.is_sealed


def test_marks_of_the_example_are_a_whole_slot(tmp_path: Path):
    """The published offsets of the example are one valid slot with a CRC-32."""
    slot = example("marks")
    (tmp_path / published_offsets.MARKS_NAME).write_bytes(slot + bytes(56))
    assert published_offsets.read_published_offsets(tmp_path) == Published(
        7, 9, 9, 7, len(example("batch"))
    )
    assert struct.unpack("<7q", slot) == (3, 7, 9, 9, 7, 100, zlib.crc32(slot[:48]))


@pytest.mark.parametrize("kind", [*layout.FileKind])
def test_every_kind_of_segment_file_is_on_the_page(kind: layout.FileKind):
    """Every kind of segment file is described on the page."""
    assert kind.value in PAGE


def test_every_other_file_name_is_on_the_page():
    """Every other file name and suffix is described on the page."""
    from cordwood.log.lifecycle.directory import ARCHIVE, CLEANER, META

    names = {layout.LEADER_EPOCHS, layout.PARTITION_METADATA, layout.SEGMENT_FACTS, layout.FORMAT}
    names |= {published_offsets.MARKS_NAME, layout.LOCK, META, ARCHIVE, CLEANER, "staging"}
    names |= {layout.DELETED, layout.SWAP, layout.CLEANED, layout.TMP, layout.TORN}
    assert {name for name in names if name not in PAGE} == set()


def test_format_version_on_the_page_is_the_code_s():
    """The format version on the page is that of the code."""
    assert layout.encode_format().decode().strip() == "1"
    assert r'format-version                 "1\n"' in PAGE


def test_example_changes_are_noticed():
    """A flipped bit in the example is detected, so the checks above can fail."""
    data = bytearray(example("batch"))
    data[70] ^= 1
    assert isinstance(parse_header(data), BatchHeader)
    with pytest.raises(Exception, match="checksum"):
        check_batches(data, MIB)
