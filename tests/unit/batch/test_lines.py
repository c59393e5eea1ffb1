"""Encoding ingress lines as batches: grammar, rejected lines and numbered producers.

Each rule is checked for the kernel and for the plain implementation.
"""

import numpy as np
import pytest

from cordwood.batch.header import check_batches, parse_headers
from cordwood.batch.lines import (
    LineBatch,
    LineProducer,
    count_lines,
    encode_frames,
    encode_lines,
    encode_lines_plain,
    load_kernels,
)
from cordwood.batch.records import decode_committed
from cordwood.model import Header, Record

NOW = 1_700_000_000_000


@pytest.fixture(params=["kernel", "plain"])
def encode(request):
    """Each of the two implementations."""
    load_kernels()
    return encode_lines if request.param == "kernel" else encode_lines_plain


def numbered(*numbers: int) -> bytes:
    """Return one line for each number ``n``."""
    return b"".join(b"k|1|%d|v%d\n" % (n, n) for n in numbers)


def taken(batch: LineBatch) -> list[int]:
    """Return the ``n`` of every stored record."""
    return [int(record.headers[1].value) for record in decode_committed(batch.data)]


def test_a_line_becomes_a_record(encode):
    """A line becomes a record with key, value, the broker's time, and ``ts`` and ``n`` headers."""
    batch = encode(b"test.probe|0017|42|pay|load\n", NOW)
    assert decode_committed(batch.data) == [
        Record(0, NOW, b"test.probe", b"pay|load", (Header("ts", b"0017"), Header("n", b"42")))
    ]
    assert batch[1:] == (1, [], 0, None)
    (header,) = check_batches(batch.data, 1 << 20)
    assert (header.producer_id, header.base_sequence) == (-1, -1)


def test_a_carriage_return_before_the_newline_is_not_payload(encode):
    """A carriage return before the newline is removed; one inside the payload stays."""
    batch = encode(b"k|1|2|a\rb\r\nk|1|3|\r\n", NOW)
    assert [record.value for record in decode_committed(batch.data)] == [b"a\rb", b""]


def test_blank_lines_are_ignored(encode):
    """Blank lines are neither records nor errors."""
    batch = encode(b"\n\r\nk|1|2|x\n\n", NOW)
    assert (batch.count, batch.rejected) == (1, [])
    assert encode(b"", NOW) == LineBatch(bytearray(), 0, [], 0, None)
    assert encode(b"\n", NOW).data == b""


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"hello", "fewer than three"),
        (b"k|1|2", "fewer than three"),
        (b" ", "fewer than three"),
        (b"|1|2|x", "key is empty"),
        (b"k" * 250 + b"|1|2|x", "longer than 249"),
        (b"a\tb|1|2|x", "control character"),
        (b"a\x7f|1|2|x", "control character"),
        (b"long-enough-key\x01|1|2|x", "control character"),
        (b"long-enough\x7f-key|1|2|x", "control character"),
        (b"k||2|x", "timestamp"),
        (b"k|-1|2|x", "timestamp"),
        (b"k|1.5|2|x", "timestamp"),
        (b"k|+1|2|x", "timestamp"),
        (b"k| 1|2|x", "timestamp"),
        (b"k|9223372036854775808|2|x", "timestamp"),
        (b"k|1700000000000x|2|x", "timestamp"),
        (b"k|:7000000|2|x", "timestamp"),
        (b"k|/7000000|2|x", "timestamp"),
        (b"k|1||x", "n is not"),
        (b"k|1|-2|x", "n is not"),
        (b"k|1|two|x", "n is not"),
        (b"k|1|99999999999999999999|x", "n is not"),
    ],
)
def test_a_bad_line_is_reported_and_harms_nobody(encode, line, reason):
    """A rejected line is reported with its range and reason; the lines around it are stored."""
    before, after = b"k|1|1|before\n", b"k|1|2|after\n"
    batch = encode(before + line + b"\r\n" + after, NOW)
    ((start, end, why),) = batch.rejected
    assert (before + line + b"\r\n" + after)[start:end] == line + b"\r"
    assert reason in why
    assert [record.value for record in decode_committed(batch.data)] == [b"before", b"after"]


@pytest.mark.parametrize(
    "line",
    [
        b"k" * 249 + b"|1|2|x",
        "schlüssel|1|2|x".encode(),
        b"\xff\xfe\xff\xfe\xff\xfe\xff\xfe\x80|1|2|x",
        b"a key with spaces ~!|1|2|x",
        b"k|9223372036854775807|9223372036854775807|x",
        b"k|0000000000000000000000000000001|00|x",
        b"k|1|2|" + bytes(b for b in range(256) if b not in b"\n"),
    ],
)
def test_what_the_grammar_allows_is_taken(encode, line):
    """Lines at the limits of the grammar are accepted."""
    batch = encode(line + b"\n", NOW)
    (record,) = decode_committed(batch.data)
    assert b"|".join([record.key, *(h.value for h in record.headers), record.value]) == line


def test_frames_are_lines_whose_payload_may_hold_newlines():
    """Frames follow the same grammar, but a payload may contain newlines.

    A rejected frame is reported by its position in all bodies joined.
    """
    bodies = [b"k|1|1|a\nb\r", b"bad", b"", b"k|1|2|" + b"x" * 3000]
    batch = encode_frames(bodies, NOW, producer=LineProducer(9, 0, None))
    assert [r.value for r in decode_committed(batch.data)] == [b"a\nb\r", b"x" * 3000]
    assert [(start, end) for start, end, _ in batch.rejected] == [(10, 13)]
    assert (taken(batch), batch.last_n) == ([1, 2], 2)


def test_batches_end_before_the_limit(encode):
    """Batches stay within the size limit; a longer line gets its own batch, offsets continue."""
    chunk = b"".join(b"k|1|%d|%s\n" % (n, b"v" * (100 if n != 5 else 3000)) for n in range(40))
    batch = encode(chunk, NOW, batch_bytes_max=1000)
    headers = check_batches(batch.data, 1 << 20)
    assert [header.count for header in headers if header.size_bytes > 1000] == [1]
    assert sum(header.count for header in headers) == batch.count == 40
    assert [record.offset for record in decode_committed(batch.data)] == list(range(40))


# --- numbered producers ---------------------------------------------------------------------


def test_batches_carry_the_producer(encode):
    """A batch carries producer ID, epoch and sequence, so headers alone restore the state."""
    batch = encode(numbered(5, 6, 7), NOW, producer=LineProducer(9, 2, None))
    (header,) = check_batches(batch.data, 1 << 20)
    assert (header.producer_id, header.producer_epoch) == (9, 2)
    assert (header.base_sequence, header.last_sequence, batch.last_n) == (5, 7, 7)


def test_what_was_seen_is_dropped(encode):
    """Resent lines are dropped as duplicates, within a chunk and across chunks."""
    producer = LineProducer(9, 0, None)
    first = encode(numbered(1, 2, 3, 2, 3, 4), NOW, producer=producer)
    assert (taken(first), first.duplicates, first.last_n) == ([1, 2, 3, 4], 2, 4)
    again = encode(numbered(3, 4, 5), NOW, producer=producer._replace(last_n=first.last_n))
    assert (taken(again), again.duplicates, again.last_n) == ([5], 2, 5)
    nothing = encode(numbered(1, 2), NOW, producer=producer._replace(last_n=5))
    assert (nothing.data, nothing.count, nothing.duplicates, nothing.last_n) == (b"", 0, 2, 5)


def test_without_a_name_nobody_counts(encode):
    """Without a named producer, lines with the same ``n`` are not duplicates."""
    assert taken(encode(numbered(1, 1, 0), NOW)) == [1, 1, 0]


def test_a_gap_starts_a_new_batch(encode):
    """A gap in the numbers starts a new batch, so sequence and ``n`` agree for every record."""
    batch = encode(numbered(1, 2, 7, 8, 20), NOW, producer=LineProducer(9, 0, 0))
    assert [(h.base_sequence, h.last_sequence) for h in parse_headers(batch.data)] == [
        (1, 2),
        (7, 8),
        (20, 20),
    ]
    assert [h.base_offset for h in parse_headers(batch.data)] == [0, 2, 4]


def test_a_bad_line_between_numbers_leaves_a_gap(encode):
    """A rejected line leaves a gap in the numbers and so starts a new batch."""
    batch = encode(b"k|1|1|a\nk|bad|2|b\nk|1|3|c\n", NOW, producer=LineProducer(9, 0, None))
    assert [h.base_sequence for h in parse_headers(batch.data)] == [1, 3]


def test_numbers_wrap_as_sequences_do(encode):
    """Numbers wrap modulo 2**31: 0 follows 2**31 - 1 and is newer."""
    top = 2**31 - 1
    batch = encode(numbered(top - 1, top, 0, 1, top), NOW, producer=LineProducer(9, 0, top - 2))
    assert (taken(batch), batch.duplicates, batch.last_n) == ([top - 1, top, 0, 1], 1, 1)
    (header,) = parse_headers(batch.data)
    assert (header.base_sequence, header.last_sequence) == (top - 1, 1)


def test_numbers_beyond_31_bits_go_on(encode):
    """Numbers above 31 bits are accepted and still detect duplicates."""
    batch = encode(numbered(2**31, 2**31 + 1), NOW, producer=LineProducer(9, 0, 2**31 - 1))
    assert (taken(batch), batch.last_n) == ([2**31, 2**31 + 1], 2**31 + 1)
    recovered = LineProducer(9, 0, parse_headers(batch.data)[0].last_sequence)
    assert encode(numbered(2**31 + 1), NOW, producer=recovered).duplicates == 1


def test_lines_must_be_complete(encode):
    """A chunk that does not end with a newline fails an assertion."""
    with pytest.raises(AssertionError, match="complete lines"):
        encode(b"k|1|2|x", NOW)


def test_any_buffer_is_taken(encode):
    """Any buffer is accepted, such as a memoryview into a socket buffer."""
    buffer = bytearray(b"##k|1|2|x\n##")
    assert encode(memoryview(buffer)[2:-2], NOW) == encode(b"k|1|2|x\n", NOW)
    buffer.clear()


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 1023, 1024, 1025, 70_000])
def test_newlines_of_any_block_are_counted(size: int):
    """Newlines are counted correctly for any size, with or without the kernel."""
    data = np.random.default_rng(size).choice(np.frombuffer(b"\n|x", np.uint8), size).tobytes()
    for block in (data, memoryview(data)):
        assert count_lines(block) == data.count(b"\n")


def test_fields_of_every_length_are_copied_whole_wherever_they_end():
    """Fields of every length are copied completely at the end of a block.

    The kernel copies 32 bytes at a time and never reads past the block.
    """
    load_kernels()
    for length in range(140):
        text = bytes(range(128, 256)) * 2
        key, payload = text[: 1 + length % 249], text[:length]
        lines = b"%b|%d|%d|%b\n" % (key, 10 ** (length % 18), length, payload)
        for block in (lines, lines + lines, lines + b"k|1|1|\n", b"short\n" + lines):
            assert encode_lines(block, NOW) == encode_lines_plain(block, NOW), length
