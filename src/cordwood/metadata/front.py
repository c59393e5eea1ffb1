"""The metadata as the program uses it: ``Metadata`` on threads, ``AsyncMetadata`` on the loop.

Cluster facts and reader state are two classes over one store. One lock orders their changes, so a
cursor is never written for a topic that is deleted at the same time. ``begin_delete`` is the only
change that writes keys of both; it is one transaction. A delivery or transaction moves cursors
within the reader state, and only reads which topics exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from cordwood.metadata.cached_store import CachedStore
from cordwood.metadata.cluster_catalog import REPLACED_KEPT, ClusterCatalog, ClusterTables
from cordwood.metadata.keys import Topic, encode_topic, key, topic_prefixes
from cordwood.metadata.reader_state import ReaderState, ReaderTables
from cordwood.metadata.store import MetadataStore

P = ParamSpec("P")
T = TypeVar("T")


class Metadata:
    """Cluster facts and reader state over one store. Safe to call from any thread."""

    def __init__(self, store: MetadataStore, *, replaced_kept: int = REPLACED_KEPT) -> None:
        """Load the whole current state into memory; raises ``CorruptionError``."""
        cluster, readers = ClusterTables(), ReaderTables()
        self._store = CachedStore(store, cluster.by_kind | readers.by_kind)
        self.cluster = ClusterCatalog(self._store, cluster, replaced_kept)
        self.readers = ReaderState(self._store, readers, self.cluster)

    def begin_delete(self, name: str) -> Topic:
        """Delete all metadata of a topic, its cursors too, and record that its files must go."""
        with self._store.writing:
            topic = self.cluster.topic(name)
            owned = [kv.key for prefix in topic_prefixes(name) for kv in self._store.range(prefix)]
            put = {key("deleting", name): encode_topic(topic)}
            self._store.write(put, [key("topic", name), *owned])
            return topic

    def close(self) -> None:
        """Release the store."""
        self._store.close()


class AsyncMetadata:
    """The metadata for code on the event loop, which never sees a thread.

    Reads are lookups in memory: ``cluster`` and ``readers`` answer them at once. A change waits for
    an fsync, so it must not run on the event loop: ``run`` executes it elsewhere.
    """

    def __init__(self, metadata: Metadata) -> None:
        """Use metadata that stays open until after ``close``."""
        self.cluster = metadata.cluster
        self.readers = metadata.readers
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cordwood-meta")

    def run(self, change: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        """Call ``change`` off the event loop; the result is its result, durable by then.

        Changes run one at a time, in the order of these calls. A change that has started completes
        even if nobody waits for it any more.
        """
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._thread, partial(change, *args, **kwargs))

    def close(self) -> None:
        """Wait for the changes that were requested; refuse further ones."""
        self._thread.shutdown()
