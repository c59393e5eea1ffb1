"""Take the whole batches at the front of bytes that a reader got from a file or a broker.

A read ends anywhere, usually inside a batch. ``take_batches`` returns the run of whole batches that
begin below an offset. It checks frames and offsets, and checksums unless the caller decodes (and
so verifies) the batches anyway. Small inputs are walked in Python, many batches by the kernel.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from cordwood.batch.header import CRC_START, HEADER_BYTES, LOG_OVERHEAD, MAGIC, crc32c
from cordwood.batch.kernels.loader import kernels_ready, load_kernels_soon
from cordwood.errors import CorruptBatch
from cordwood.model import OFFSET_MAX

MANY_BATCHES: Final = 200  # from here on a kernel is faster than Python's 2 µs per batch
FRAME: Final = struct.Struct(">qi4xbI2xi")  # base offset, length, magic, crc, last offset delta


class BatchRun(NamedTuple):
    """Consecutive whole batches."""

    data: bytes | memoryview
    first_offset: int  # of the first batch; may be below the requested offset
    next_offset: int  # where to read next


class OffsetLimits(NamedTuple):
    """The offsets that the batches may have: the checksum does not cover them."""

    least: int = 0  # no batch begins below
    end: int = OFFSET_MAX  # no batch reaches past
    most: int | None = None  # without gaps: the first batch begins here or below


ANY_OFFSETS: Final = OffsetLimits()


def first_size_bytes(data: bytes | memoryview) -> int:
    """The size that the first batch states, of which ``data`` may hold only the beginning."""
    return LOG_OVERHEAD + int.from_bytes(data[8:LOG_OVERHEAD], "big")


def take_batches(
    data: bytes | memoryview,
    end_offset: int,
    limits: OffsetLimits = ANY_OFFSETS,
    *,
    verify: bool = True,
) -> BatchRun | None:
    """Return the whole sound batches in ``data``; None if all begin at ``end_offset`` or later.

    Sound batches before a bad one are returned. Raises ``CorruptBatch`` if the first batch is bad
    or not whole.
    """
    if len(data) >= MANY_BATCHES * first_size_bytes(data):  # estimated from the first batch
        run = _take_by_kernel(data, end_offset, limits, verify) if kernels_ready() else None
        if run is not None:
            return run
        load_kernels_soon()  # for the next such read
    return _take_plainly(data, end_offset, limits, verify)


def _take_by_kernel(
    data: bytes | memoryview, end_offset: int, limits: OffsetLimits, verify: bool
) -> BatchRun | None:
    """Like ``_take_plainly``, by one kernel call; None means: use ``_take_plainly``."""
    from cordwood.batch.header_table import (  # late: an idle broker needs no numpy
        WalkEnd,
        walk_batches,
    )

    walk = walk_batches(data, verify=verify)
    firsts, lasts = walk.batches.base_offsets, walk.batches.last_offsets
    if walk.end is WalkEnd.CORRUPT or not len(firsts):
        return None
    is_ordered = bool((firsts <= lasts).all() and (firsts[1:] > lasts[:-1]).all())
    if not is_ordered or firsts[0] < limits.least or lasts[-1] >= limits.end:
        return None
    if limits.most is not None and (firsts[0] > limits.most or (firsts[1:] > lasts[:-1] + 1).any()):
        return None
    count = int(firsts.searchsorted(end_offset))
    if not count:
        return None
    end = int(walk.batches.positions[count - 1] + walk.batches.sizes[count - 1])
    return BatchRun(_front(data, end), int(firsts[0]), int(lasts[count - 1]) + 1)


def _take_plainly(
    data: bytes | memoryview, end_offset: int, limits: OffsetLimits, verify: bool
) -> BatchRun | None:
    least, limit, most = limits
    is_dense = most is not None
    end, first_offset, next_offset = 0, -1, least
    before_end, before_offset = 0, -1  # the run without its last batch
    data_bytes = len(data)
    headers_end = data_bytes - HEADER_BYTES
    while end <= headers_end:  # hot loop: attribute lookups are kept out of it
        base_offset, length, magic, crc, delta = FRAME.unpack_from(data, end)
        size_bytes = LOG_OVERHEAD + length
        if magic != MAGIC or size_bytes < HEADER_BYTES:
            if end:
                break
            raise CorruptBatch("there is no batch")
        following = base_offset + delta + 1
        if not next_offset <= base_offset < following <= limit or (is_dense and base_offset > most):
            if base_offset < next_offset:  # the previous batch may be the wrong one
                end, next_offset = before_end, before_offset
            if end:
                break
            raise CorruptBatch(
                f"the batch claims offset {base_offset}, expected {next_offset} to {limit - 1}"
            )
        if base_offset >= end_offset:
            return BatchRun(_front(data, end), first_offset, next_offset) if end else None
        batch_end = end + size_bytes
        if batch_end > data_bytes:
            break
        if verify and crc32c(data[end + CRC_START : batch_end]) != crc:
            if end:
                break
            raise CorruptBatch("the batch does not match its checksum")
        before_end, before_offset = end, next_offset
        if not end:
            first_offset = base_offset
        end, most = batch_end, following
        next_offset = following
    if not end:
        raise CorruptBatch("the file ends inside this batch")
    return BatchRun(_front(data, end), first_offset, next_offset)


def _front(data: bytes | memoryview, end: int) -> bytes | memoryview:
    """The first ``end`` bytes, uncopied: a reply of megabytes nearly always ends inside a batch."""
    return data if end == len(data) else memoryview(data)[:end]
