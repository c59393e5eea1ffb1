"""The writer's queue: appends and calls in the order of their arrival. Its owner holds a lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from cordwood.errors import ShuttingDown
from cordwood.log.write.commit import Append, by_partition
from cordwood.log.write.partition import Partition

Call = tuple[Callable[[], object], Future[object]]


class AppendQueue:
    """What waits for the writer; ``records`` and ``bytes`` let submitters bound it.

    Appends whose partition waits for a roll are held back: counted, but not taken.
    """

    def __init__(self) -> None:
        self.appends: deque[Append] = deque()
        self.calls: list[Call] = []
        self.records = 0
        self.bytes = 0
        self.is_closed = False
        self._held: dict[Partition, list[Append]] = {}
        self._held_records = 0
        self.held_bytes = 0

    @property
    def is_empty(self) -> bool:
        """Whether neither an append nor a call waits."""
        return not (self.appends or self.calls)

    def put(self, append: Append) -> None:
        """Add an append; raises ``ShuttingDown`` once the queue is closed."""
        self.check_open()
        self.appends.append(append)
        self.records += append.records
        self.bytes += len(append.data)

    def put_back(self, appends: Sequence[Append]) -> None:
        """Put appends that could not be written yet before all others, in their order."""
        for append in reversed(appends):
            self.appends.appendleft(append)
            self.records += append.records
            self.bytes += len(append.data)

    def put_call(self, call: Call) -> None:
        """Add a call; raises ``ShuttingDown`` once the queue is closed."""
        self.check_open()
        self.calls.append(call)

    def check_open(self) -> None:
        """Raise ``ShuttingDown`` if the queue is closed."""
        if self.is_closed:
            raise ShuttingDown(
                "the broker is shutting down; send this again after it has restarted"
            )

    def clear_appends(self) -> None:
        """Remove all appends, which the caller has taken."""
        self.appends.clear()
        self.records, self.bytes = self._held_records, self.held_bytes

    def take_appends(self) -> dict[Partition, list[Append]]:
        """Remove and return all appends, except those whose partition waits for a roll."""
        taken = by_partition(self.appends)
        self.clear_appends()
        if self._held:
            for partition in taken.keys() & self._held.keys():
                self.hold(partition, taken.pop(partition))
        return taken

    def hold(self, partition: Partition, appends: list[Append]) -> None:
        """Keep these appends, in order, until ``resume``; later ones of the partition follow."""
        self._held.setdefault(partition, []).extend(appends)
        self._count_held(appends, 1)

    def resume(self, partition: Partition) -> None:
        """Queue the appends that were held back, before all others."""
        appends = self._held.pop(partition, [])
        self._count_held(appends, -1)
        self.put_back(appends)

    def _count_held(self, appends: Sequence[Append], sign: int) -> None:
        records = sign * sum(append.records for append in appends)
        size_bytes = sign * sum(len(append.data) for append in appends)
        self.records += records
        self.bytes += size_bytes
        self._held_records += records
        self.held_bytes += size_bytes

    def close(self) -> None:
        """Accept nothing more; what was held back is tried a last time."""
        self.is_closed = True
        for partition in list(self._held):
            self.resume(partition)

    def take_calls(self) -> list[Call]:
        """Remove and return all calls."""
        calls, self.calls = self.calls, []
        return calls

    def evict(self, records: int) -> list[Append]:
        """Remove the oldest droppable appends until ``records`` records are gone."""
        evicted: list[Append] = []
        kept: list[Append] = []
        while self.appends and records > 0:
            append = self.appends.popleft()
            if not append.droppable:
                kept.append(append)
                continue
            evicted.append(append)
            records -= append.records
            self.records -= append.records
            self.bytes -= len(append.data)
        self.appends.extendleft(reversed(kept))
        return evicted
