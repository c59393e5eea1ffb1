"""Leadership terms: which began at which offset, and the file that remembers it. Pure.

Every batch carries the term it was written in. ``leader-epoch-checkpoint`` lists the terms, one per
line, ``<epoch> <first offset>``, after a version and a count. With it a reader or a replica that
knows how far it came in a term learns where that term ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cordwood.errors import CorruptionError


class EpochStart(NamedTuple):
    """A term and the first offset written in it."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """A term and one past the last offset written in it."""

    epoch: int
    end_offset: int


Epochs = tuple[EpochStart, ...]


def with_epoch(epochs: Epochs, epoch: int, start_offset: int) -> Epochs:
    """The terms with a new one that begins here, if it is new."""
    if epochs and epochs[-1].epoch >= epoch:
        return epochs
    return (*epochs, EpochStart(epoch, start_offset))


def without_epochs_from(epochs: Iterable[EpochStart], end_offset: int) -> Epochs:
    """The terms that began below ``end_offset``."""
    return tuple(term for term in epochs if term.start_offset < end_offset)


def epoch_end(epochs: Epochs, epoch: int, high_watermark: int) -> EpochEnd | None:
    """The latest term not after ``epoch`` and where it ended; None for a term yet to come.

    A term before all that are known ended where the first known one began.
    """
    if not epochs or epoch > epochs[-1].epoch:
        return None
    before = [term for term in epochs if term.epoch <= epoch]
    if not before:
        return EpochEnd(epoch, epochs[0].start_offset)
    if len(before) == len(epochs):
        return EpochEnd(before[-1].epoch, high_watermark)
    return EpochEnd(before[-1].epoch, epochs[len(before)].start_offset)


def encode_epochs(epochs: Epochs) -> bytes:
    """The checkpoint's text."""
    lines = ["0", str(len(epochs)), *(f"{term.epoch} {term.start_offset}" for term in epochs)]
    return ("\n".join(lines) + "\n").encode()


def parse_epochs(text: bytes) -> Epochs:
    """The terms in order; raises ``CorruptionError`` for anything else."""
    try:
        version, count, *lines = text.decode("ascii").splitlines()
        epochs = tuple(EpochStart(*map(int, line.split())) for line in lines)
        is_whole = version == "0" and len(epochs) == int(count)
    except (ValueError, TypeError):
        is_whole, epochs = False, ()
    if not is_whole or list(epochs) != sorted(epochs):
        raise CorruptionError(f"not a list of growing terms: {text[:80]!r}")
    return epochs
