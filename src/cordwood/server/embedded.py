"""Opens the store of a single node, with its metadata in a SQLite file of the data directory.

The only place that chooses the metadata store: ``log`` and ``broker`` know the interface alone.
"""

from __future__ import annotations

from pathlib import Path

from cordwood.clock import Clock
from cordwood.config import BrokerConfig
from cordwood.log.files.disk import Files
from cordwood.log.lifecycle.directory import DataDirectory
from cordwood.log.lifecycle.store import EAGER_MAX, Store
from cordwood.metadata.sqlite import SqliteStore


def open_embedded_store(
    data: Path, config: BrokerConfig, clock: Clock, files: Files, *, eager: int = EAGER_MAX
) -> Store:
    """Lock and recover the data directory; raises ``ConfigError``s that name the remedy."""
    directory = DataDirectory.open(data, config, files)
    try:
        metadata = SqliteStore(directory.metadata_path, clock)
    except BaseException:
        directory.close()
        raise
    return Store.open(directory, metadata, config, clock, files, eager=eager)
