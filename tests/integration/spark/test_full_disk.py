"""Archive and table on a full disk fail cleanly and succeed once there is space."""

from __future__ import annotations

import random
import subprocess

import pytest

from cordwood.batch.records import encode_batch
from cordwood.client.kafka import KafkaClient
from cordwood.client.storage import open_storage
from cordwood.client.topic_archive import list_topic_archives
from cordwood.errors import UnavailableError
from cordwood.model import Record, TopicPartition
from cordwood.pipeline.archive import ArchiveRequest, create_archive
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi
from cordwood.pipeline.table import TableRequest, build_table
from cordwood.protocol.api.topics import CutTopic
from cordwood.testing import Broker

pytestmark = pytest.mark.spark

COUNT = 3000  # of 256 bytes each; gzip halves them


@pytest.fixture
def disk(tmp_path):
    """A two-megabyte tmpfs that the file ``ballast`` fills almost completely."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "cordwood-test", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may make a small disk")
    try:
        (place / "ballast").write_bytes(bytes(2_000_000))
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.fixture(scope="module")
def broker():
    with Broker(durability="os") as running:
        with KafkaClient(running.kafka) as client:
            client.create_topic("t", 1, {"retention.ms": "-1"})
            for first in range(0, COUNT, 100):
                rows = [Record(i, 0, b"%d" % (first + i), a_value(first + i)) for i in range(100)]
                client.produce(TopicPartition("t", 0), encode_batch(rows))
        yield running


def a_value(number):
    return random.Random(number).randbytes(128).hex().encode()


@pytest.fixture
def service(broker):
    api = BrokerApi(BrokerAddress(broker.kafka))
    yield api
    api.close()


def files(place):
    return {path.name for path in place.rglob("*") if path.is_file()} - {"ballast"}


def test_an_archive_that_does_not_fit_leaves_no_bundle(spark, service, disk):
    """A failed archive removes all its bundles, including those that fit on the disk."""
    service.call(CutTopic(topic="t"))
    storage = open_storage(str(disk / "archive"))
    request = ArchiveRequest(topic="t", bundle_records=200)
    with pytest.raises(UnavailableError, match=r"tar\.gz\.\S+\.part: No space left on device"):
        create_archive(spark, service, storage, request)
    assert files(disk) == {"manifest.jsonl.lock"}
    (disk / "ballast").unlink()
    assert sum(entry.records for entry in create_archive(spark, service, storage, request)) == COUNT
    assert list_topic_archives(storage, "t")[0].verify()[1] == []


def test_a_table_that_does_not_fit_leaves_the_one_before(spark, service, disk):
    """A failed table reports the system's error and leaves no files."""
    request = TableRequest(topic="t", out=disk / "table")
    with pytest.raises(UnavailableError, match=r"part: No space left on device; fix"):
        build_table(spark, service, request)
    assert files(disk) == {"_table.lock"}
    (disk / "ballast").unlink()
    assert build_table(spark, service, request).rows == COUNT
