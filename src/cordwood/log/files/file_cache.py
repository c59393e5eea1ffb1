"""A bounded cache of open files for readers on any thread, and the limit for the writer's files.

A reader leases a descriptor and returns it. Idle descriptors stay open; the least recently used one
is closed first. A leased descriptor is never closed while a reader uses it, because its number
could be reused for another file at once; it is closed when the last lease ends. Keys are segments,
never paths: after a swap the same path is another file.
"""

from __future__ import annotations

import os
import resource
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from cordwood.config import BrokerConfig
from cordwood.decide.descriptors import LIMIT_MIN, UNLIMITED, DescriptorPlan, plan_descriptors
from cordwood.errors import ConfigError
from cordwood.log.files.open_tails import OpenTails

IDLE_MAX: Final = 256  # a quarter of the usual limit per process
LISTENERS: Final = 4  # kafka, ingress, control, http: connections.max applies to each


@dataclass(slots=True)
class _Entry:
    fd: int
    leases: int = 0
    is_forgotten: bool = False


class FileCache:
    """Read descriptors shared by the readers of one or many partitions.

    ``tails`` bounds the files that the writer of the same partitions has open.
    """

    def __init__(self, idle_max: int = IDLE_MAX, tails_max: int = IDLE_MAX) -> None:
        self.tails = OpenTails(tails_max)
        self._idle_max = idle_max
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._entries)  # in case close() is never called

    @property
    def open_count(self) -> int:
        """How many cached descriptors are open, idle or leased."""
        return len(self._entries)

    @contextmanager
    def lease(self, key: Hashable, open_file: Callable[[], int]) -> Iterator[int]:
        """Lease a descriptor of this file until the block ends.

        ``open_file`` is called if none is open under ``key``; its errors pass through.
        """
        entry = self._take(key, open_file)
        try:
            yield entry.fd
        finally:
            self._give_back(entry)

    def forget(self, key: Hashable) -> None:
        """Close the file once its last lease ends; the next lease opens it again."""
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is not None:
                self._retire(entry)

    def close(self) -> None:
        """Forget all files."""
        with self._lock:
            while self._entries:
                self._retire(self._entries.popitem()[1])

    def _take(self, key: Hashable, open_file: Callable[[], int]) -> _Entry:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = _Entry(open_file())
                self._entries[key] = entry
                if len(self._entries) > self._idle_max:
                    self._retire(self._entries.popitem(last=False)[1])
            else:
                self._entries.move_to_end(key)
            entry.leases += 1
            return entry

    def _give_back(self, entry: _Entry) -> None:
        with self._lock:
            entry.leases -= 1
            if entry.is_forgotten and not entry.leases:
                os.close(entry.fd)

    def _retire(self, entry: _Entry) -> None:
        entry.is_forgotten = True
        if not entry.leases:
            os.close(entry.fd)


def _close_all(entries: OrderedDict[Hashable, _Entry]) -> None:
    for entry in entries.values():
        os.close(entry.fd)


def share_descriptors(config: BrokerConfig) -> DescriptorPlan:
    """Divide this process's descriptors among their uses; raises ``ConfigError``."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        limit = UNLIMITED
    if limit < LIMIT_MIN:
        raise ConfigError(
            f"this process may open only {limit} files, but a broker needs {LIMIT_MIN}; raise the "
            "limit with `ulimit -n` or systemd's LimitNOFILE"
        )
    return plan_descriptors(limit, LISTENERS * config.connections_max)
