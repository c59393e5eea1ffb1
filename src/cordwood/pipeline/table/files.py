"""A table's Parquet files: tasks write them to the table's storage, the driver verifies each.

Tasks write to ``_incoming``, under names made from the content's hash, and report what they wrote.
The driver accepts a report only after it has read the file itself: it compares the sha256, the
number of rows, and the total with the rows Spark counted before they were written. Reading verifies
the sha256 and rows of each file in the same way.

This module does not decide which files make up the table; ``storage`` does.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from cordwood.client.storage import Storage, open_storage
from cordwood.client.topic_archive import CHECKERS, put_proved
from cordwood.config import MIB
from cordwood.errors import CorruptionError, UnavailableError
from cordwood.log.format.bundle import proving
from cordwood.pipeline.runtime.failure_reasons import plain_reason
from cordwood.pipeline.runtime.probe import Probe, not_shared
from cordwood.pipeline.runtime.tasks import run_on_rows, spread
from cordwood.plural import plural

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

INCOMING: Final = "_incoming"
COLUMNS: Final = "key binary, value binary, partition int, offset long, timestamp timestamp"
GROUP_BYTES: Final = 32 * MIB  # size of a row group in memory, before it is encoded
_COPY_BYTES: Final = 4 * MIB


class TableFile(NamedTuple):
    """One Parquet file of a table."""

    name: str  # relative to the table's root
    rows: int
    size_bytes: int
    sha256: str | None  # None for files that ``deltalake`` wrote


def arrow_schema() -> pa.Schema:
    """Return the table's Arrow schema."""
    import pyarrow as pa

    return pa.schema(
        {
            "key": pa.binary(),
            "value": pa.binary(),
            "partition": pa.int32(),
            "offset": pa.int64(),
            "timestamp": pa.timestamp("us", tz="UTC"),
        }
    )


# --- writing --------------------------------------------------------------------------------


def write_files(rows: DataFrame, storage: Storage, probe: Probe) -> list[TableFile]:
    """Write the rows to files in ``_incoming``: tasks write them, the driver verifies each."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812

    counted = Observation()
    observed = rows.observe(counted, F.count(F.lit(1)).alias("rows"))
    try:
        written = run_on_rows(observed, partial(write_part, probe))
    except (Py4JError, PySparkException) as error:
        raise UnavailableError(
            f"{storage.place}: {plain_reason(error)}; fix this, then run the command again"
        ) from None
    files = sorted(file for file in written if file is not None)
    check_files(storage, files, probe.option)
    check_total(sum(file.rows for file in files), int(counted.get["rows"]), storage.place)
    return files


def write_part(probe: Probe, batches: Iterable[pa.RecordBatch]) -> TableFile | None:
    """Runs on an executor: write one partition to one file and read it back; None without rows."""
    probe.check()
    with tempfile.TemporaryFile() as file:
        rows = write_parquet(file, batches)
        if not rows:
            return None
        size_bytes = file.tell()
        sha256 = put_proved(open_storage(probe.place), file, incoming_name)
    return TableFile(incoming_name(sha256), rows, size_bytes, sha256)


def incoming_name(sha256: str) -> str:
    """Return the name under which a file with this content is first written."""
    return f"{INCOMING}/{file_name(sha256)}"


def file_name(sha256: str) -> str:
    """Name a file after its content, so that a task that runs twice changes no verified file."""
    return f"part-{sha256[:32]}.parquet"


def write_parquet(file: IO[bytes], batches: Iterable[pa.RecordBatch]) -> int:
    """Write batches in row groups of about ``GROUP_BYTES``; returns the number of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema, held, held_bytes, rows = arrow_schema(), [], 0, 0
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in batches:
            held.append(batch)
            held_bytes += batch.nbytes
            rows += batch.num_rows
            if held_bytes >= GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(held).cast(schema))
                held, held_bytes = [], 0
        if rows == 0 or held:
            writer.write_table(pa.Table.from_batches(held, None if held else schema).cast(schema))
    return rows


# --- checking, on the driver ----------------------------------------------------------------


def check_files(storage: Storage, files: Sequence[TableFile], option: str) -> None:
    """Check on the driver that every file is in the storage and matches its task's report."""
    with ThreadPoolExecutor(CHECKERS) as pool:
        for _ in pool.map(lambda file: _check_file(storage, file, option), files):
            pass


def _check_file(storage: Storage, file: TableFile, option: str) -> None:
    import pyarrow.parquet as pq

    try:
        with _fetched(storage, file) as copy:
            rows = pq.ParquetFile(copy).metadata.num_rows
    except (FileNotFoundError, NotADirectoryError):
        what = f"wrote {file.name}, but the driver does not see it there"
        raise not_shared(storage.place, option, what) from None
    check_total(rows, file.rows, f"{storage.place}/{file.name}")


def check_present(storage: Storage, files: Sequence[TableFile]) -> None:
    """Check that the existing table has all its files; reading them verifies their content."""
    for file in files:
        if storage.size(file.name) != file.size_bytes:
            raise CorruptionError(
                f"{file.name} of the table in {storage.place} is missing or has a different size; "
                "remove the table and build it again"
            )


def check_total(rows: int, wanted: int, where: str) -> None:
    """Raise ``CorruptionError`` if the number of rows is not the expected one."""
    if rows != wanted:
        raise CorruptionError(
            f"{where} has {plural(rows, 'row')}, but {wanted} were written; the table is "
            "unchanged; run the command again"
        )


def _fetched(storage: Storage, file: TableFile) -> IO[bytes]:
    """Copy a file to a temporary one and verify its sha256; returns it positioned at the start."""
    copy = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    try:
        with closing(storage.open(file.name)) as source:
            if file.sha256 is None:
                shutil.copyfileobj(source, copy, _COPY_BYTES)
            else:
                with proving(source, file.name, file.sha256) as proven:
                    shutil.copyfileobj(proven, copy, _COPY_BYTES)
    except BaseException:
        copy.close()
        raise
    copy.seek(0)
    return copy


# --- reading --------------------------------------------------------------------------------


def read_files(spark: SparkSession, place: str, files: Sequence[TableFile]) -> DataFrame:
    """Read the files as a DataFrame, one task per file; no files give an empty one."""
    if not files:
        return spark.createDataFrame([], COLUMNS)

    return spread(spark, partial(read_part, place), files, COLUMNS)


def read_part(place: str, file: TableFile) -> Iterator[pa.RecordBatch]:
    """Runs on an executor: yield one file's rows; raises if they are not all there."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 0
    with _fetched(open_storage(place), file) as copy:
        for batch in pq.ParquetFile(copy).iter_batches(columns=arrow_schema().names):
            rows += batch.num_rows
            yield from pa.Table.from_batches([batch]).cast(arrow_schema()).to_batches()
    check_total(rows, file.rows, f"{place}/{file.name}")


def stream_files(storage: Storage, files: Sequence[TableFile]) -> Iterator[Any]:
    """Yield the rows of the files one after another, to be written elsewhere."""
    for file in files:
        yield from read_part(storage.place, file)
