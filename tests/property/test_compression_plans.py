"""Compression never tries a segment twice and never changes a record, for any log."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cordwood.batch.header import parse_header, patch
from cordwood.batch.header_table import readonly, walk_batches
from cordwood.batch.recoding import Recoding, plan_merges, recode
from cordwood.batch.records import decode_batch, encode_batch, encode_marker
from cordwood.decide.compression import (
    CompressionInputs,
    CompressionResult,
    CompressionStatus,
    SealedSegment,
    plan_compression,
)
from cordwood.model import Codec, Header, Record, TimestampType
from support.stacks import NOW_MS, a_segment

codecs = st.sampled_from(list(Codec))


@st.composite
def inputs(draw) -> CompressionInputs:
    sealed, offset = [], 0
    for _ in range(draw(st.integers(0, 5))):
        span = draw(st.integers(1, 9))
        result = draw(
            st.none()
            | st.builds(
                CompressionResult,
                st.sampled_from(["zstd", "gzip", "none"]),
                st.just(NOW_MS),
                st.integers(0, 200),
                st.booleans(),
            )
        )
        sealed.append(
            SealedSegment(
                a_segment(offset, offset + span, size_bytes=draw(st.integers(0, 200))),
                sealed_ms=NOW_MS - draw(st.integers(-10, 100)),
                result=result,
                is_damaged=draw(st.booleans()),
                retry_ms=NOW_MS + draw(st.integers(-5, 5)),
            )
        )
        offset += span
    return CompressionInputs(
        sealed=tuple(sealed),
        codec=draw(codecs),
        delay_ms=draw(st.integers(0, 100)),
        clean_end=draw(st.none() | st.integers(0, offset)),
        is_leased=draw(st.booleans()),
        now_ms=NOW_MS,
    )


def due(planned):
    return [each.segment for each in planned if each.status is CompressionStatus.DUE]


@given(inputs(), st.booleans(), st.booleans())
def test_planned_again_after_a_round_nothing_is_due(made, demand, is_kept):
    """Whether segments shrink or stay as they are, a round leaves nothing due."""
    tried = due(plan_compression(made, demand=demand))
    result = CompressionResult(made.codec.name.lower(), NOW_MS, 100, is_kept)
    after = tuple(each._replace(result=result) if each in tried else each for each in made.sealed)
    assert due(plan_compression(replace(made, sealed=after), demand=demand)) == []


@given(inputs(), st.booleans())
def test_what_must_not_be_touched_is_never_due(made, demand):
    """No damaged or dirty segment is due, and none while a job has the partition."""
    for each in due(plan_compression(made, demand=demand)):
        assert not made.is_leased
        assert not each.is_damaged
        assert made.clean_end is None or each.info.end_offset <= made.clean_end
        assert each.info.size_bytes > 0


@given(inputs())
def test_demand_only_adds_to_what_is_due(made):
    """On demand at least everything is due that is due anyway."""
    assert set(due(plan_compression(made))) <= set(due(plan_compression(made, demand=True)))


# --- batches --------------------------------------------------------------------------------


@st.composite
def logs(draw) -> bytes:
    """Batches of all kinds, with gaps between some of them."""
    data, offset = b"", draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 12))):
        offset += draw(st.sampled_from([0, 0, 0, 3]))
        made, count = draw(batches())
        stored = bytearray(made)
        patch(stored, 0, offset, draw(st.sampled_from([0, 0, 1])))
        data += stored
        offset += count
    return data


@st.composite
def batches(draw):
    producer = draw(st.sampled_from([-1, -1, -1, 5]))
    if producer == 5 and draw(st.booleans()):
        marker = encode_marker(
            True, producer_id=5, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW_MS
        )
        return marker, 1
    count = draw(st.integers(1, 4))
    records = [
        Record(
            at,
            NOW_MS + draw(st.integers(-50, 50)),
            draw(st.none() | st.binary(max_size=4)),
            draw(st.none() | st.binary(max_size=40)),
            draw(st.sampled_from([(), (Header("h", b"1"), Header("n", None))])),
        )
        for at in range(count)
    ]
    sequence = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 3} if producer == 5 else {}
    horizon = draw(st.sampled_from([None, None, NOW_MS + 9]))
    made = encode_batch(
        records,
        codec=draw(codecs),
        timestamp_type=draw(st.sampled_from(list(TimestampType))),
        is_transactional=producer == 5 and draw(st.booleans()),
        delete_horizon_ms=horizon,
        **sequence,
    )
    return made, count


def recoded(data: bytes, codec: Codec, merged_bytes: int, *, is_start: bool) -> bytes:
    batches = walk_batches(data).batches
    rules = Recoding(codec, {}, merged_bytes)
    return b"".join(recode(readonly(data), batches, rules, is_start=is_start))


def split(data: bytes):
    position = 0
    while position < len(data):
        header = parse_header(data, position)
        yield header, decode_batch(data, position)
        position += header.size_bytes


@given(logs(), codecs, st.integers(0, 400), st.booleans())
def test_every_record_is_the_same_after_recoding(data, codec, merged_bytes, is_start):
    """Offsets, timestamps, keys, values and headers are unchanged, and so is the order."""
    after = recoded(data, codec, merged_bytes, is_start=is_start)
    before = [record for _, records in split(data) for record in records]
    assert [record for _, records in split(after) for record in records] == before
    assert walk_batches(after).valid_bytes == len(after)


@given(logs(), codecs, st.integers(0, 400))
def test_batches_of_producers_and_markers_keep_their_headers(data, codec, merged_bytes):
    """Only length, checksum and codec of such a batch change; of a marker nothing does."""
    after = {header.base_offset: header for header, _ in split(recoded(
        data, codec, merged_bytes, is_start=False))}  # fmt: skip
    for header, _ in split(data):
        if header.producer_id < 0 and not header.has_delete_horizon:
            continue
        new = after[header.base_offset]
        if header.is_control:
            assert new == header
        same = new._replace(
            batch_length=header.batch_length, crc=header.crc,
            attributes=new.attributes & ~7 | header.attributes & 7,
        )  # fmt: skip
        assert same == header
        assert new.codec in {header.codec, codec}


@given(logs(), st.integers(0, 400), st.booleans())
def test_groups_cover_all_batches_in_order(data, merged_bytes, is_start):
    """Each batch is in one group; the first batch of a segment is alone in its group."""
    batches = walk_batches(data).batches
    groups = list(plan_merges(batches, merged_bytes, is_start=is_start))
    assert (groups[0].start, groups[-1].end) == (0, len(batches))
    assert all(one.end == other.start for one, other in pairwise(groups))
    if is_start:
        assert groups[0].end == 1


@given(logs(), codecs, st.booleans())
def test_a_segment_that_was_recoded_stays_as_it_is(data, codec, is_start):
    """Recoding twice gives the same bytes, unless there were batches left to merge."""
    once = recoded(data, codec, 0, is_start=is_start)
    assert recoded(once, codec, 0, is_start=is_start) == once
