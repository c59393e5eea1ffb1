"""Leader epochs: the offset at which each began, and the file that stores them. Pure.

Every batch holds the leader epoch it was written in. ``leader-epoch-checkpoint`` lists the epochs,
one per line, ``<epoch> <first offset>``, after a version and a count. From it a reader or replica
that knows its position in an epoch learns where that epoch ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cordwood.errors import CorruptionError


class EpochStart(NamedTuple):
    """A leader epoch and its first offset."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """A leader epoch and one past its last offset."""

    epoch: int
    end_offset: int


Epochs = tuple[EpochStart, ...]


def with_epoch(epochs: Epochs, epoch: int, start_offset: int) -> Epochs:
    """Add an epoch that begins here, unless it is known already."""
    if epochs and epochs[-1].epoch >= epoch:
        return epochs
    return (*epochs, EpochStart(epoch, start_offset))


def without_epochs_from(epochs: Iterable[EpochStart], end_offset: int) -> Epochs:
    """The epochs that began below ``end_offset``."""
    return tuple(term for term in epochs if term.start_offset < end_offset)


def epoch_end(epochs: Epochs, epoch: int, high_watermark: int) -> EpochEnd | None:
    """The latest epoch up to ``epoch`` and its end offset; None for a future epoch.

    An epoch before all known ones ended where the first known one began.
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
    """The text of the checkpoint."""
    lines = ["0", str(len(epochs)), *(f"{term.epoch} {term.start_offset}" for term in epochs)]
    return ("\n".join(lines) + "\n").encode()


def parse_epochs(text: bytes) -> Epochs:
    """The epochs in order; raises ``CorruptionError`` if the text is invalid."""
    try:
        version, count, *lines = text.decode("ascii").splitlines()
        epochs = tuple(EpochStart(*map(int, line.split())) for line in lines)
        is_whole = version == "0" and len(epochs) == int(count)
    except (ValueError, TypeError):
        is_whole, epochs = False, ()
    if not is_whole or list(epochs) != sorted(epochs):
        raise CorruptionError(f"not a list of ascending leader epochs: {text[:80]!r}")
    return epochs
