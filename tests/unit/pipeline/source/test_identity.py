"""Files under ``path`` are read only if they are the data directory of the named broker."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from cordwood.client.kafka import KafkaClient
from cordwood.errors import NotDataDirectory, UnavailableError
from cordwood.log.format.identity import IDENTITY, DataIdentity, read_identity
from cordwood.pipeline.compact.job import where_proved
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi
from cordwood.pipeline.runtime.staging import StagingTarget, StagingWriter
from cordwood.pipeline.runtime.targets import Targets
from cordwood.pipeline.source.data_directory import SegmentFileLog
from cordwood.pipeline.source.identity import ask_identity
from cordwood.pipeline.source.kafka_log import KafkaLog
from cordwood.pipeline.source.log_access import open_log, reach_log
from cordwood.pipeline.source.options import SourceOptions, parse_options
from cordwood.protocol.api.status import DirectoryIdentity
from cordwood.testing import Broker
from support.compaction import in_process
from support.datadir import make_data_directory
from support.lines import ask

pytest.importorskip("pyspark")

from cordwood.pipeline.source.source import TopicReader


@pytest.fixture(scope="module")
def broker():
    """Run the broker that queries name. Its topic ``t`` holds ``ours``."""
    with Broker() as running:
        assert ask(running.control, "PUT t ours") == b"OK"
        yield running


@pytest.fixture(scope="module")
def other():
    """Run another broker whose topic has the same name and length, with other records."""
    with Broker() as running:
        assert ask(running.control, "PUT t theirs") == b"OK"
        yield running


def options_of(path: Path | str, servers: str | None) -> SourceOptions:
    options = {"subscribe": "t", "path": str(path), "startingOffsets": "earliest"}
    if servers:
        options["kafka.bootstrap.servers"] = servers
    return parse_options(options, streaming=False)


def reader_of(path: Path, servers: str | None) -> TopicReader:
    from pyspark.sql.types import BinaryType, StructField, StructType

    schema = StructType([StructField("value", BinaryType())])
    return TopicReader(options_of(path, servers), schema)


def values(reader: TopicReader, splits: list) -> list[bytes]:
    """Return the values that tasks read from these splits."""
    batches = [batch for split in splits for batch in reader.read(split)]
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def opened(path: Path | str, servers: str | None) -> type:
    with open_log(options_of(path, servers)) as log:
        return type(log)


def test_the_brokers_own_directory_is_read_as_files(broker):
    """The broker's own directory is read as files.

    Its identity is the same over the Kafka and the HTTP listener.
    """
    assert opened(broker.data, broker.kafka) is SegmentFileLog
    here = read_identity(broker.data)
    assert ask_identity(BrokerAddress(servers=broker.kafka)) == here
    assert ask_identity(BrokerAddress(http=broker.http)) == here


def test_another_cordwood_directory_under_the_path_is_not_read(broker, other, caplog):
    """If ``path`` is another data directory, records are read over Kafka, which is logged."""
    assert opened(other.data, broker.kafka) is KafkaLog
    assert "source.path_refused" in caplog.text
    reader = reader_of(other.data, broker.kafka)
    assert values(reader, reader.partitions()) == [b"ours"]


def test_a_copy_of_the_directory_is_not_read(broker, tmp_path):
    """A copy of the data directory is not read, although its identity file has the same content."""
    shutil.copytree(broker.data, tmp_path / "copy")
    assert read_identity(tmp_path / "copy").nonce == read_identity(broker.data).nonce
    assert opened(tmp_path / "copy", broker.kafka) is KafkaLog


def test_an_executor_that_sees_another_directory_reads_over_the_wire(broker, other, tmp_path):
    """A task checks the directory it opens, and reads over Kafka if it is another one."""
    path = tmp_path / "data"
    path.symlink_to(broker.data)
    reader = reader_of(path, broker.kafka)
    splits = reader.partitions()
    assert values(reader, splits) == [b"ours"]
    path.unlink()
    path.symlink_to(other.data)
    assert values(reader, splits) == [b"ours"]


def test_an_executor_without_a_broker_refuses_another_directory(broker, other, tmp_path):
    """With ``path`` alone, a task that finds another directory fails with an error."""
    path = tmp_path / "data"
    path.symlink_to(broker.data)
    reader = reader_of(path, None)
    splits = reader.partitions()
    assert values(reader, splits) == [b"ours"]
    path.unlink()
    path.symlink_to(other.data)
    with pytest.raises(NotDataDirectory, match=r"not the data directory the query was planned"):
        values(reader, splits)


def test_a_directory_from_before_identities_is_read_by_its_path_alone(other, tmp_path):
    """A directory of an older version has no identity file, and is read without this check."""
    shutil.copytree(other.data, tmp_path / "old")
    (tmp_path / "old" / IDENTITY).unlink()
    reader = reader_of(tmp_path / "old", None)
    assert values(reader, reader.partitions()) == [b"theirs"]


def test_a_restart_keeps_the_id_and_proves_itself_again(tmp_path):
    """A restart keeps the directory's id and writes a new nonce, and files are still read."""
    with Broker(tmp_path / "data") as running:
        first = read_identity(tmp_path / "data")
        assert opened(tmp_path / "data", running.kafka) is SegmentFileLog
        running.restart()
        second = read_identity(tmp_path / "data")
        assert (second.data_id, second.nonce != first.nonce) == (first.data_id, True)
        assert opened(tmp_path / "data", running.kafka) is SegmentFileLog


def test_a_proved_directory_is_read_while_the_broker_is_away(tmp_path):
    """A directory that was verified once is read while the broker is down. Others are not."""
    with Broker(tmp_path / "data") as running:
        servers = running.kafka
        assert opened(tmp_path / "data", servers) is SegmentFileLog
    assert opened(tmp_path / "data", servers) is SegmentFileLog
    assert isinstance(reach_log(options_of(tmp_path / "data", "127.0.0.1:1")), KafkaLog)


def test_results_are_never_staged_into_another_directory(broker, other):
    """If the staging directory is not the broker's, results are uploaded over HTTP."""
    where = BrokerAddress(http=broker.http)
    with closing(BrokerApi(where)) as api:
        harness = StagingTarget.of(api)
    assert harness.is_writable()
    far = StagingTarget(where, str(other.data))
    assert not far.is_writable()
    with StagingWriter(far, "job-1", Targets()) as buffer:
        buffer.put("t", 0, b"batches")
        (part,) = buffer.flush()
    assert (broker.data / "staging" / "job-1" / part.file).read_bytes() == b"batches"
    assert not (other.data / "staging").exists()


def test_compaction_opens_nothing_in_another_directory(broker, other):
    """Compaction refuses a directory that is not the broker's, on the driver and in each task."""
    identity = DirectoryIdentity(*read_identity(broker.data))
    order = SimpleNamespace(topic="t", partition=0, data=str(broker.data), identity=identity)
    moved = SimpleNamespace(**{**vars(order), "data": str(other.data)})
    assert where_proved(in_process, order)(abs, [-1]) == [1]
    with pytest.raises(UnavailableError, match="is not the broker's data directory"):
        where_proved(in_process, moved)
    run = where_proved(in_process, order)
    broker.data.joinpath(IDENTITY).rename(broker.data / "aside")
    try:
        with pytest.raises(UnavailableError, match="on every executor"):
            run(abs, [-1])
    finally:
        broker.data.joinpath("aside").rename(broker.data / IDENTITY)


@pytest.fixture
def closed():
    """Create a data directory without access for this user. Root switches to another user."""
    data = make_data_directory(Path(tempfile.mkdtemp(prefix="cordwood-")))
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    else:
        data.chmod(0)
    yield data
    if is_root:
        os.seteuid(0)
    data.chmod(0o700)
    shutil.rmtree(data)


def test_a_directory_of_another_user_is_refused_with_the_setting_that_opens_it(closed, caplog):
    """Without permission for ``path``, records are read over Kafka, and a warning is logged once.

    Without a broker, the error names the setting that gives access.
    """
    for _ in range(2):
        assert opened(closed, "127.0.0.1:1") is KafkaLog
    assert caplog.text.count("source.path_closed") == 1
    with pytest.raises(UnavailableError, match=r"this user may not; .* file\.mode=group"):
        opened(closed, None)


def test_kafka_clients_see_the_identity(broker):
    """Kafka clients can read the identity as a read-only setting of the broker."""
    with KafkaClient(broker.kafka) as client:
        (report,) = [each for each in client.broker_config() if each.name == "data.identity"]
    assert DataIdentity.parse_text(report.value) == read_identity(broker.data)
    assert report.read_only


@pytest.mark.parametrize("text", [b"", b"version: 1\n", b"\xff\xfe", b"x" * 5000])
def test_a_file_that_says_something_else_proves_nothing(tmp_path, text):
    """An identity file that is torn, foreign or of a newer version is treated as missing."""
    (tmp_path / IDENTITY).write_bytes(text)
    assert read_identity(tmp_path) is None
    assert DataIdentity.parse_text(text.decode("latin-1")) is None
