"""The parameters and the results of a load test."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from cordwood.model import Codec
from cordwood.tls import ClientTls

Report = Callable[[int], None]  # called with the number of records completed since the last call

BATCH_BYTES: Final = 256 * 1024
BATCH_RECORDS_MAX: Final = 1_000
_VALUES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The number and size of records, and the number of concurrent clients."""

    records: int
    size_bytes: int
    acks: int = -1  # -1 means all, as in the Kafka protocol
    codec: Codec = Codec.NONE
    clients: int = 1
    tls: ClientTls | None = None  # how the clients connect

    @property
    def batch_records(self) -> int:
        """The number of records per batch, so that batches are neither tiny nor huge."""
        return max(1, min(BATCH_RECORDS_MAX, BATCH_BYTES // max(1, self.size_bytes)))

    def shares(self) -> list[int]:
        """The number of records of each client, in whole batches except for the last."""
        batches = math.ceil(self.records / self.batch_records)
        counts = [
            batches // self.clients + (n < batches % self.clients) for n in range(self.clients)
        ]
        shares = [count * self.batch_records for count in counts]
        spare = sum(shares) - self.records
        last = max(n for n, share in enumerate(shares) if share)
        shares[last] -= spare
        return shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """One row of results; ``waits_s`` are the latencies of single responses, in any order."""

    workload: str
    client: str
    records: int
    size_bytes: int
    seconds: float
    waits_s: Sequence[float]

    @property
    def records_per_s(self) -> float:
        """The average rate of the whole run."""
        return self.records / self.seconds

    @property
    def bytes_per_s(self) -> float:
        """The average rate in bytes of record values, without protocol overhead."""
        return self.records * self.size_bytes / self.seconds

    def wait_s(self, share: float) -> float | None:
        """The percentile of the waits for a share such as 0.99; None if there are no waits."""
        if not self.waits_s:
            return None
        ordered = sorted(self.waits_s)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def make_values(size_bytes: int, seed: int = 1) -> list[bytes]:
    """Values to cycle through; half of each is random, so codecs compress it only partly."""
    chance = random.Random(seed)  # noqa: S311 - the same bytes in every run
    noise = size_bytes // 2
    return [chance.randbytes(noise) + b"x" * (size_bytes - noise) for _ in range(_VALUES)]
