"""Storage of tables: versions of Parquet files with a pointer to the current one, or a Delta table.

    <out>/current              → versions/<n>, switched atomically: readers see the old or the new
    <out>/versions/<n>/        Parquet files, and _cordwood.json: the offsets read so far, and every
                               file with its rows and sha256
    <out>/_delta_log …         instead of both, with the format delta
    <out>/_incoming/           files that tasks have written and the driver has not published yet

In a directory ``current`` is a symbolic link; in an object store, which has none, it is an object
that names the version. Only verified files enter a version, and ``current`` moves when the version
is complete. Leftovers of a run that died are removed by the next run.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cordwood.client.storage import DirectoryStorage, Storage, read_small
from cordwood.client.topic_archive import put_proved
from cordwood.errors import ConfigError, CorruptionError, UnavailableError
from cordwood.extras import install_command
from cordwood.pipeline.table.files import (
    INCOMING,
    TableFile,
    arrow_schema,
    check_total,
    incoming_name,
    read_files,
    stream_files,
    write_parquet,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STATE: Final = "_cordwood.json"
CURRENT: Final = "current"
VERSIONS: Final = "versions"
LOCK: Final = "_table"
DELTA_LOG: Final = "_delta_log"


class TableState(NamedTuple):
    """The offsets up to which a table has read its topic, and its files."""

    topic_id: str
    offsets: dict[int, int]
    files: tuple[TableFile, ...] = ()

    @property
    def rows(self) -> int:
        """Number of rows of the whole table."""
        return sum(file.rows for file in self.files)


def open_table(storage: Storage, form: str) -> ParquetTable | DeltaTable:
    """Open the table at a place; raises ``ConfigError`` if a table of the other format is there."""
    is_delta = bool(storage.names(DELTA_LOG))
    if form == "parquet" and is_delta:
        raise ConfigError(f"{storage.place} is a Delta table; use --format delta, or another place")
    if form == "delta":
        if read_pointer(storage) is not None:
            raise ConfigError(f"{storage.place} is a Parquet table; use another place for Delta")
        return DeltaTable(storage)
    return ParquetTable(storage)


class ParquetTable:
    """A Parquet table: versions side by side, and a pointer to the current one."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    @property
    def place(self) -> str:
        """The path or URL that readers open."""
        if isinstance(self._storage, DirectoryStorage):
            return f"{self._storage.place}/{CURRENT}"
        return f"{self._storage.place}/{read_pointer(self._storage) or VERSIONS}"

    def state(self) -> TableState | None:
        """Read the state of the current version; None before the first."""
        version = read_pointer(self._storage)
        return None if version is None else read_state(self._storage, f"{version}/{STATE}")

    def read(self, spark: SparkSession, state: TableState) -> DataFrame:
        """Read the rows of the current version, whose state this is."""
        return read_files(spark, self._storage.place, state.files)

    def sweep(self) -> None:
        """Remove leftovers of runs that died: incoming files, and versions never made current."""
        self._storage.sweep(INCOMING, lambda _: False)
        in_use = _number(read_pointer(self._storage))
        self._storage.sweep(VERSIONS, lambda name: 0 < _number(name) <= in_use)

    def publish(self, files: Sequence[TableFile], state: TableState) -> TableState:
        """Make a complete version of these verified files, then point ``current`` to it."""
        in_use = _number(read_pointer(self._storage))
        taken = [in_use, *(_number(name) for name in self._storage.names(VERSIONS))]
        version = f"{VERSIONS}/{max(taken) + 1:06d}"
        if not files:  # readers need the columns of an empty table, too
            files = [_write_empty(self._storage)]
        moved = [file._replace(name=f"{version}/{Path(file.name).name}") for file in files]
        for old, new in zip(files, moved, strict=True):
            self._storage.move(old.name, new.name)
        published = state._replace(files=tuple(moved))
        write_state(self._storage, f"{version}/{STATE}", published)
        self._check_version(version, published)
        write_pointer(self._storage, version)
        self._drop_before(in_use)
        return published

    def _check_version(self, version: str, state: TableState) -> None:
        """Check that the version holds exactly its verified files, each with its size."""
        wanted = {file.name for file in state.files} | {f"{version}/{STATE}"}
        present = set(self._storage.names(version))
        sizes = {file.name: self._storage.size(file.name) for file in state.files}
        wrong = {file.name for file in state.files if sizes[file.name] != file.size_bytes}
        if odd := sorted((wanted ^ present) | wrong):
            raise CorruptionError(
                f"{odd[0]} in {self._storage.place} has changed since it was written; the table "
                "is unchanged; run the command again"
            )

    def _drop_before(self, number: int) -> None:
        """Delete versions older than ``number``; that one stays, as readers may still use it."""
        for name in self._storage.names(VERSIONS):
            if _number(name) < number:
                self._storage.remove(name)
        self._storage.sweep(VERSIONS, lambda name: _number(name) >= number)


class DeltaTable:
    """A Delta table, written by ``deltalake``, because Spark alone does not support Delta."""

    def __init__(self, storage: Storage) -> None:
        try:
            import deltalake
        except ImportError:
            raise ConfigError(
                f"the format delta needs deltalake: run `{install_command('delta')}`"
            ) from None
        self._api: Any = deltalake
        self._storage = storage
        self.place = storage.place

    def state(self) -> TableState | None:
        """Read the table's state, with the files of its newest version; None before the first."""
        state = read_state(self._storage, STATE)
        return None if state is None else state._replace(files=tuple(self._files()))

    def read(self, spark: SparkSession, state: TableState) -> DataFrame:
        """Read the files of the newest version; a table without rows may have none."""
        return read_files(spark, self._storage.place, state.files)

    def sweep(self) -> None:
        """Remove leftovers of runs that died from ``_incoming``."""
        self._storage.sweep(INCOMING, lambda _: False)

    def publish(self, files: Sequence[TableFile], state: TableState) -> TableState:
        """Make one Delta commit, then store the offsets; without them the next run repeats it."""
        import pyarrow as pa

        rows = pa.RecordBatchReader.from_batches(arrow_schema(), stream_files(self._storage, files))
        with self._plain_errors(), closing(rows) as reader:
            self._api.write_deltalake(self.place, reader, mode="overwrite")
        for file in files:
            self._storage.remove(file.name)
        published = state._replace(files=tuple(self._files()))
        check_total(published.rows, sum(file.rows for file in files), self.place)
        write_state(self._storage, STATE, published)
        return published

    def _files(self) -> list[TableFile]:
        from urllib.parse import unquote

        import pyarrow as pa

        with self._plain_errors():
            actions = pa.table(self._api.DeltaTable(self.place).get_add_actions(flatten=True))
        columns = [actions[name].to_pylist() for name in ("path", "num_records", "size_bytes")]
        return [
            TableFile(unquote(name), rows, size_bytes, None)
            for name, rows, size_bytes in zip(*columns, strict=True)
        ]

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        """Turn errors of ``deltalake`` into ``UnavailableError`` with a one-line message."""
        try:
            yield
        except (self._api.exceptions.DeltaError, OSError) as error:
            first = str(error).strip().partition("\n")[0]
            raise UnavailableError(
                f"{self.place}: {first}; fix this, then run the command again"
            ) from None


# --- the state and the pointer --------------------------------------------------------------


def read_pointer(storage: Storage) -> str | None:
    """Return ``versions/<n>``, the current version; None before the first."""
    if isinstance(storage, DirectoryStorage):
        try:
            return str((Path(storage.place) / CURRENT).readlink())
        except OSError:
            return None
    pointer = read_small(storage, CURRENT)
    return None if pointer is None else pointer.decode().strip()


def write_pointer(storage: Storage, version: str) -> None:
    """Point readers to another version, atomically."""
    if not isinstance(storage, DirectoryStorage):
        storage.put(CURRENT, io.BytesIO(f"{version}\n".encode()))
        return
    link = Path(storage.place) / f".{CURRENT}"
    link.unlink(missing_ok=True)
    link.symlink_to(version)
    storage.move(link.name, CURRENT)


def _number(name: str | None) -> int:
    """Return the number of the version that contains a name; 0 if none does."""
    parts = (name or "").split("/")
    is_version = len(parts) > 1 and parts[0] == VERSIONS and parts[1].isdecimal()
    return int(parts[1]) if is_version else 0


def read_state(storage: Storage, name: str) -> TableState | None:
    """Read a table's state; None if there is none, or one in an old format without files."""
    data = read_small(storage, name)
    if data is None:
        return None
    try:
        state = json.loads(data)
        if "files" not in state:
            return None
        offsets = {int(at): int(offset) for at, offset in state["offsets"].items()}
        files = tuple(TableFile(*file) for file in state["files"])
        return TableState(state["topic_id"], offsets, files)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(
            f"{storage.place}/{name} cannot be parsed; remove the table and build it again"
        ) from None


def write_state(storage: Storage, name: str, state: TableState) -> None:
    """Write the state atomically; a failed attempt leaves a file only in ``_incoming``."""
    text = json.dumps(state._asdict(), sort_keys=True)
    storage.put(f"{INCOMING}/{STATE}", io.BytesIO(text.encode()))
    storage.move(f"{INCOMING}/{STATE}", name)


def _write_empty(storage: Storage) -> TableFile:
    file = io.BytesIO()
    write_parquet(file, [])
    sha256 = put_proved(storage, file, incoming_name)
    return TableFile(incoming_name(sha256), 0, len(file.getvalue()), sha256)
