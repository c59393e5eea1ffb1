"""Opening a store with a locked directory and any metadata store; the store owns both."""

from __future__ import annotations

import pytest

from cordwood.config import BrokerConfig
from cordwood.errors import CorruptionError
from cordwood.log.files.disk import Files
from cordwood.log.lifecycle.directory import DataDirectory
from cordwood.log.lifecycle.store import Store
from cordwood.metadata.sqlite import SqliteStore
from support.clock import ManualClock


class OtherStore(SqliteStore):
    """A metadata store outside the data directory that counts calls of ``close``."""

    closings = 0

    def close(self) -> None:
        self.closings += 1
        super().close()


@pytest.fixture
def parts(tmp_path):
    """Return the arguments of ``Store.open``: a locked directory and a metadata store elsewhere."""
    files, config = Files(), BrokerConfig()
    directory = DataDirectory.open(tmp_path / "data", config, files)
    metadata = OtherStore(tmp_path / "elsewhere.db", ManualClock())
    return directory, metadata, config, ManualClock(), files


def test_the_metadata_store_need_not_be_in_the_data_directory(parts):
    """The store uses the given metadata store, even if it is outside the data directory."""
    directory, metadata, *_ = parts
    store = Store.open(*parts)
    store.create_topic("t", 1)
    assert [kv.key for kv in metadata.range("now/topic/")[1]] == ["now/topic/t"]
    assert directory.metadata_path.stat().st_size == 0
    store.close()


def test_closing_a_store_closes_what_it_was_given(parts):
    """Closing a store, even twice, releases the lock and closes the metadata store once."""
    directory, metadata, config, _, files = parts
    store = Store.open(*parts)
    store.close()
    store.close()
    assert metadata.closings == 1
    DataDirectory.open(directory.path, config, files).close()


def test_a_store_that_cannot_be_opened_closes_what_it_was_given(parts):
    """If opening fails, the metadata store is closed and the directory can be locked again."""
    directory, metadata, config, _, files = parts
    metadata.txn(put={"now/epoch/t/0": b"not a number"})
    with pytest.raises(CorruptionError):
        Store.open(*parts)
    assert metadata.closings == 1
    DataDirectory.open(directory.path, config, files).close()
