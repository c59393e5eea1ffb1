"""Kill the publication of a table before every effect: readers see the old or the new table.

The steps on Spark before it are tested in ``tests/integration/spark``; files here are made by hand.
"""

from __future__ import annotations

import io
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cordwood.client.storage import open_storage
from cordwood.errors import CorruptionError, UnavailableError
from cordwood.log.format.bundle import digest
from cordwood.pipeline.table.files import INCOMING, TableFile, arrow_schema, write_parquet
from cordwood.pipeline.table.storage import DeltaTable, ParquetTable, TableState, open_table
from support.steps import Killed, SteppingStorage, Steps

FORMS = ("parquet", "delta")


def stage(storage, *keys):
    """Write files to ``_incoming`` as tasks do, one for each key."""
    files = []
    for key in keys:
        rows = {"key": [key], "value": [b"v"], "partition": [0], "offset": [1], "timestamp": [0]}
        batch = pa.Table.from_pydict(rows, arrow_schema()).to_batches()
        file = io.BytesIO()
        write_parquet(file, batch)
        data = file.getvalue()
        file.seek(0)
        name = f"{INCOMING}/part-{key.decode()}.parquet"
        open_storage(storage.place).put(name, io.BytesIO(data))
        files.append(TableFile(name, 1, len(data), digest(file)))
    return files


def publish(storage, form, end, *keys):
    """Publish as a run does: sweep, stage files, check and publish them."""
    table = open_table(storage, form)
    with storage.held("_table"):
        table.sweep()
        try:
            return table.publish(stage(storage, *keys), TableState("id", {0: end}))
        finally:
            table.sweep()


def keys_of(out, form):
    """Return the keys that a reader of the files finds."""
    if form == "delta":
        deltalake = pytest.importorskip("deltalake")
        return set(deltalake.DeltaTable(str(out)).to_pyarrow_table()["key"].to_pylist())
    return set(pq.read_table(out / "current")["key"].to_pylist())


def build_old(out, form):
    for end, keys in ((1, b"a"), (2, b"ab")):
        publish(open_storage(str(out)), form, end, *[bytes([key]) for key in keys])


NEW = (b"b", b"c", b"d")


@pytest.mark.parametrize("form", FORMS)
def test_a_switch_killed_before_any_effect_shows_the_old_table_or_the_new(tmp_path, form):
    """The next run publishes the new table and removes the files of the killed run."""
    if form == "delta":
        pytest.importorskip("deltalake")
    out, copy = tmp_path / "out", tmp_path / "old"
    build_old(copy, form)
    shutil.copytree(copy, out, symlinks=True)
    steps = Steps()
    publish(SteppingStorage(out, steps), form, 3, *NEW)
    assert keys_of(out, form) == set(NEW)
    assert left_in(out) == []
    seen = set()
    for after in range(len(steps.names)):
        shutil.rmtree(out)
        shutil.copytree(copy, out, symlinks=True)
        with pytest.raises(Killed):
            publish(SteppingStorage(out, Steps(after)), form, 3, *NEW)
        state = open_table(open_storage(str(out)), form).state()
        found = keys_of(out, form)
        assert found in ({b"a", b"b"}, set(NEW))
        seen.add((frozenset(found), state.offsets[0]))
        assert state.offsets[0] == 2 or found == set(NEW), "no table is behind its state"
        publish(open_storage(str(out)), form, 3, *NEW)
        assert keys_of(out, form) == set(NEW)
        assert left_in(out) == []
        assert open_table(open_storage(str(out)), form).state().rows == len(NEW)
    assert len(seen) > 1, "it was killed before the switch and after it"


def left_in(out):
    """Return what only a killed run leaves: partial, incoming and unpublished files."""
    versions = list((out / "versions").iterdir()) if (out / "versions").is_dir() else []
    left = [path for path in out.rglob("*") if path.suffix == ".part" or INCOMING in path.parts]
    return left + [path for path in versions if not (path / "_cordwood.json").is_file()]


def test_a_version_holds_nothing_that_nobody_checked(tmp_path):
    """A stray file, such as from a task that outlived its run, is never published."""
    out = tmp_path / "out"
    build_old(out, "parquet")
    storage = open_storage(str(out))
    table = ParquetTable(storage)
    files = stage(storage, *NEW)
    storage.put("versions/000003/part-stray.parquet", io.BytesIO(b"stray"))
    published = table.publish(files, TableState("id", {0: 3}))
    assert {file.name.split("/")[1] for file in published.files} == {"000004"}

    class Straying(SteppingStorage):
        def move(self, old, new):
            super().move(old, new)
            if new.endswith("part-d.parquet"):
                super().put(new.replace("part-d", "part-stray"), io.BytesIO(b"stray"))

    before = keys_of(out, "parquet")
    with pytest.raises(CorruptionError, match="part-stray"):
        publish(Straying(out, Steps()), "parquet", 4, *NEW)
    assert keys_of(out, "parquet") == before
    assert ParquetTable(storage).state().offsets == {0: 3}


def test_the_version_readers_may_be_in_stays(tmp_path):
    """The version before the current one stays; orphans of a killed run are removed."""
    out = tmp_path / "out"
    storage = open_storage(str(out))
    for end in range(1, 4):
        publish(storage, "parquet", end, b"a")
        storage.put(f"versions/{end + 1:06d}/part-orphan.parquet", io.BytesIO(b"half"))
    assert sorted(path.name for path in (out / "versions").iterdir()) == [
        "000002",
        "000003",
        "000004",
    ]
    publish(storage, "parquet", 4, b"a")
    assert sorted(path.name for path in (out / "versions").iterdir()) == ["000003", "000004"]
    assert not list(out.rglob("*orphan*"))


def test_a_delta_table_whose_commit_is_not_what_was_checked_gets_no_state(tmp_path):
    """A commit with wrong row counts keeps the old state, so the next run repeats the changes."""
    pytest.importorskip("deltalake")
    out = tmp_path / "out"
    build_old(out, "delta")
    storage = open_storage(str(out))
    table = DeltaTable(storage)
    lying = [file._replace(rows=2) for file in stage(storage, b"x")]
    with pytest.raises(UnavailableError, match="1 row, but 2 were written"):
        table.publish(lying, TableState("id", {0: 3}))
    assert table.state().offsets == {0: 2}
