"""A table build on Spark writes every row or leaves the table unchanged."""

from __future__ import annotations

import io
import json

import pyarrow.parquet as pq
import pytest

from cordwood.batch.records import encode_batch
from cordwood.client.kafka import KafkaClient
from cordwood.client.storage import open_storage
from cordwood.errors import CorruptionError, StaleManifest, UnavailableError
from cordwood.model import Record, TopicPartition
from cordwood.pipeline.runtime import priority
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi
from cordwood.pipeline.table import TableRequest, build_table, job
from cordwood.pipeline.table.storage import read_pointer
from cordwood.testing import Broker

pytestmark = pytest.mark.spark


class Topic:
    """A changelog topic and the tables built from it."""

    def __init__(self, broker: Broker, spark) -> None:
        self.broker = broker
        self.spark = spark
        self.where = BrokerAddress(broker.kafka)
        self.api = BrokerApi(self.where)

    def create(self):
        with KafkaClient(self.broker.kafka) as client:
            client.create_topic("users", 1, {"retention.ms": "-1"})

    def delete(self):
        with KafkaClient(self.broker.kafka) as client:
            client.delete_topic("users")

    def put(self, **values):
        rows = [Record(i, i, key.encode(), value) for i, (key, value) in enumerate(values.items())]
        with KafkaClient(self.broker.kafka) as client:
            client.produce(TopicPartition("users", 0), encode_batch(rows))

    def table(self, out, **options):
        request = TableRequest(topic="users", out=out, **options)
        return build_table(self.spark, self.api, request)


@pytest.fixture
def topic(spark):
    with Broker(durability="os") as broker:
        topic = Topic(broker, spark)
        topic.create()
        spark.conf.set(priority.SETTING, priority.NORMAL)  # the tests wait for these jobs
        yield topic
        spark.conf.unset(priority.SETTING)
        topic.api.close()


def rows_at(directory):
    found = pq.read_table(directory).select(["key", "value"]).to_pylist()
    return {row["key"].decode(): row["value"] for row in found}


def test_a_table_without_rows_is_a_table_in_either_format(topic, tmp_path):
    """A table may be empty after any run, in Parquet and Delta, and gets rows again later."""
    deltalake = pytest.importorskip("deltalake")
    forms = ("parquet", "delta")

    def build():
        return [topic.table(tmp_path / form, form=form) for form in forms]

    def rows():
        delta = deltalake.DeltaTable(str(tmp_path / "delta")).to_pyarrow_table().to_pylist()
        return (
            rows_at(tmp_path / "parquet" / "current"),
            {row["key"].decode(): row["value"] for row in delta},
        )

    topic.put(a=None)
    assert [built.rows for built in build()] == [0, 0]
    assert rows() == ({}, {})
    topic.put(a=b"1", b=b"1")
    assert [built.rows for built in build()] == [2, 2]
    topic.put(a=None, b=None)
    assert [built.rows for built in build()] == [0, 0]
    assert rows() == ({}, {})
    topic.put(b=b"2")
    assert [(built.rows, built.is_incremental) for built in build()] == [(1, True), (1, True)]
    assert rows() == ({"b": b"2"}, {"b": b"2"})


def test_a_table_lies_in_an_object_store_as_in_a_directory(topic, tmp_path):
    """``current`` is an object that names the version; only the last two versions are kept."""
    pytest.importorskip("obstore")
    url = f"file://{tmp_path}/bucket/users"
    for number in range(1, 4):
        topic.put(**{f"k{number}": b"v", "last": b"%d" % number})
        built = topic.table(url)
        assert (built.rows, built.is_incremental) == (number + 1, number > 1)
        assert built.place == f"{url}/versions/{number:06d}"
    assert read_pointer(open_storage(url)) == "versions/000003"
    assert rows_at(tmp_path / "bucket/users/versions/000003")["last"] == b"3"
    versions = {name.split("/")[1] for name in open_storage(url).names("versions")}
    assert versions == {"000002", "000003"}
    assert topic.table(url).read == 0


def test_a_delta_table_lies_at_a_url_too(topic, tmp_path):
    """A Delta table can be built and updated at a URL."""
    deltalake = pytest.importorskip("deltalake")
    pytest.importorskip("obstore")
    url = f"file://{tmp_path}/delta"
    topic.put(a=b"1")
    topic.table(url, form="delta")
    topic.put(b=b"1")
    assert topic.table(url, form="delta").rows == 2
    assert deltalake.DeltaTable(url).to_pyarrow_table().num_rows == 2


def test_a_table_that_lost_a_file_says_so(topic, tmp_path):
    """A build fails if a file of the current table is missing or changed."""
    topic.put(a=b"1", b=b"1")
    topic.table(tmp_path / "out")
    (part,) = (tmp_path / "out" / "current").glob("*.parquet")
    data = part.read_bytes()
    part.unlink()
    with pytest.raises(CorruptionError, match="build it again"):
        topic.table(tmp_path / "out")
    part.write_bytes(data[:-1] + b"x")
    topic.put(c=b"1")
    with pytest.raises(UnavailableError, match="sha256"):
        topic.table(tmp_path / "out")
    part.write_bytes(data)
    assert topic.table(tmp_path / "out").rows == 3


@pytest.mark.parametrize("loss", ["file", "rows", "count"])
def test_a_file_that_is_not_as_its_task_reported_stops_the_switch(
    topic, tmp_path, monkeypatch, loss
):
    """A file that differs from its task's report leaves table and cursor unchanged."""
    topic.put(a=b"1")
    topic.table(tmp_path / "out")
    topic.put(b=b"1", a=b"2")
    before = sorted(str(path) for path in (tmp_path / "out").rglob("*"))
    state = (tmp_path / "out" / "current" / "_cordwood.json").read_text()
    harmed = Harmed(str(tmp_path / "out"), loss)
    request = TableRequest(topic="users", out=tmp_path / "out")
    with pytest.raises((UnavailableError, CorruptionError), match=r"shared|sha256|rows"):
        build_table(topic.spark, topic.api, request, storage=harmed)
    assert sorted(str(path) for path in (tmp_path / "out").rglob("*")) == before
    assert (tmp_path / "out" / "current" / "_cordwood.json").read_text() == state
    assert topic.api.positions("users", request.reader) == {0: 1}
    assert topic.table(tmp_path / "out").rows == 2
    assert rows_at(tmp_path / "out" / "current") == {"a": b"2", "b": b"1"}


def test_a_topic_created_again_while_it_is_read_is_not_taken_for_the_old(
    topic, tmp_path, monkeypatch
):
    """If the topic is recreated during a build, the build fails and the next one starts anew."""
    topic.put(a=b"1")
    topic.table(tmp_path / "out")
    topic.put(b=b"1")
    write_files = job.write_files

    def recreate(*arguments):
        files = write_files(*arguments)
        topic.delete()
        topic.create()
        topic.put(z=b"new")
        return files

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(job, "write_files", recreate)
        with pytest.raises(StaleManifest, match="created again"):
            topic.table(tmp_path / "out")
    assert rows_at(tmp_path / "out" / "current") == {"a": b"1"}
    built = topic.table(tmp_path / "out")
    assert (built.rows, built.is_incremental) == (1, False)
    assert rows_at(tmp_path / "out" / "current") == {"z": b"new"}


class Harmed(type(open_storage("/"))):
    """A storage directory in which the files that tasks wrote are missing or changed."""

    def __init__(self, place, loss):
        super().__init__(place)
        self.loss = loss

    def open(self, name):
        if not name.startswith("_incoming/part"):
            return super().open(name)
        if self.loss == "file":
            raise FileNotFoundError(name)
        with super().open(name) as file:
            data = file.read()
        return io.BytesIO(data[: len(data) // 2] if self.loss == "rows" else data + b"\0")


def test_the_state_names_every_file_with_its_rows_and_sum(topic, tmp_path):
    """The state file lists every Parquet file with its row count."""
    topic.put(a=b"1", b=b"1")
    topic.table(tmp_path / "out")
    state = json.loads((tmp_path / "out" / "current" / "_cordwood.json").read_text())
    names = {file[0] for file in state["files"]}
    found = {f"versions/000001/{p.name}" for p in (tmp_path / "out" / "current").glob("*.parquet")}
    assert names == found
    assert sum(file[1] for file in state["files"]) == 2
