"""The driver looks at every file of a table itself, at its place, before the table is switched."""

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
    """A file of one row."""
    row = {"key": key, "value": b"v", "partition": 0, "offset": 0, "timestamp": 0}
    file = io.BytesIO()
    assert write_parquet(file, [pa.RecordBatch.from_pylist([row], schema=arrow_schema())]) == 1
    return file.getvalue()


def reported(data: bytes, rows: int = 1) -> TableFile:
    """What a task says of a file with these bytes."""
    return TableFile(NAME, rows, len(data), digest(io.BytesIO(data)))


@pytest.fixture
def storage(tmp_path):
    opened = open_storage(str(tmp_path / "table"))
    opened.put(NAME, io.BytesIO(parquet(b"a")))
    return opened


def test_a_file_that_is_what_its_task_reported_passes(storage):
    """Bytes and rows agree."""
    check_files(storage, [reported(parquet(b"a"))], "--out")


def test_other_bytes_with_as_many_rows_are_refused(storage):
    """Rows are counted, and bytes are hashed: a file of another run has the same count."""
    with pytest.raises(CorruptionError, match=NAME):
        check_files(storage, [reported(parquet(b"b"))], "--out")


def test_a_file_with_fewer_rows_than_reported_is_refused(storage):
    """The task's count is compared with the file's own."""
    with pytest.raises(CorruptionError, match="2 were to be written"):
        check_files(storage, [reported(parquet(b"a"), rows=2)], "--out")


def test_a_file_that_the_driver_does_not_see_is_refused(storage):
    """The executor wrote it to a disk of its own."""
    storage.remove(NAME)
    with pytest.raises(UnavailableError, match="does not see"):
        check_files(storage, [reported(parquet(b"a"))], "--out")
