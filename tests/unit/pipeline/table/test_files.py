"""The driver verifies each file of a table before it publishes the table."""

from __future__ import annotations

import io

import pyarrow as pa
import pytest

from cordwood.client.storage import open_storage
from cordwood.errors import CorruptionError, UnavailableError
from cordwood.log.format.bundle import digest
from cordwood.pipeline.table.files import TableFile, arrow_schema, check_files, write_parquet

NAME = "part-1.parquet"


def parquet(key: bytes) -> bytes:
    """Return a Parquet file with one row."""
    row = {"key": key, "value": b"v", "partition": 0, "offset": 0, "timestamp": 0}
    file = io.BytesIO()
    assert write_parquet(file, [pa.RecordBatch.from_pylist([row], schema=arrow_schema())]) == 1
    return file.getvalue()


def reported(data: bytes, rows: int = 1) -> TableFile:
    """Return what a task reports about a file with these bytes."""
    return TableFile(NAME, rows, len(data), digest(io.BytesIO(data)))


@pytest.fixture
def storage(tmp_path):
    opened = open_storage(str(tmp_path / "table"))
    opened.put(NAME, io.BytesIO(parquet(b"a")))
    return opened


def test_a_file_that_is_what_its_task_reported_passes(storage):
    """A file with the reported hash and row count passes."""
    check_files(storage, [reported(parquet(b"a"))], "--out")


def test_other_bytes_with_as_many_rows_are_refused(storage):
    """A file with the right row count but another hash is refused."""
    with pytest.raises(CorruptionError, match=NAME):
        check_files(storage, [reported(parquet(b"b"))], "--out")


def test_a_file_with_fewer_rows_than_reported_is_refused(storage):
    """A file with fewer rows than reported is refused."""
    with pytest.raises(CorruptionError, match="but 2 were written"):
        check_files(storage, [reported(parquet(b"a"), rows=2)], "--out")


def test_a_file_that_the_driver_does_not_see_is_refused(storage):
    """A file that the driver cannot find is refused.

    The executor may have written it to a local disk.
    """
    storage.remove(NAME)
    with pytest.raises(UnavailableError, match="does not see"):
        check_files(storage, [reported(parquet(b"a"))], "--out")
