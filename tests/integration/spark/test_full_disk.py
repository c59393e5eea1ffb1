"""Archive and table on a disk that is really full: a sentence, no leftovers, later success."""

from __future__ import annotations

import random
import subprocess

import pytest

from cordwood.batch.records import encode_batch
from cordwood.client.kafka import KafkaClient
from cordwood.client.storage import open_storage
from cordwood.errors import UnavailableError
from cordwood.model import Record, TopicPartition
from cordwood.pipeline.archive.job import ArchiveRequest, create_archive
from cordwood.pipeline.archive.topic_archive import list_topic_archives
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi
from cordwood.pipeline.table.job import TableRequest, build_table
from cordwood.testing import Broker

pytestmark = pytest.mark.spark

COUNT = 3000  # of 256 bytes each, of which gzip leaves half


@pytest.fixture
def disk(tmp_path):
    """A disk of two megabytes, all but a few pages taken by ``ballast``."""
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
    where = BrokerAddress(broker.kafka)
    api = BrokerApi(where)
    yield api, where
    api.close()


def files(place):
    return {path.name for path in place.rglob("*") if path.is_file()} - {"ballast"}


def test_an_archive_that_does_not_fit_leaves_no_bundle(spark, service, disk):
    """Not even those that did fit: they would hold what little room there is."""
    service[0].cut("t")
    storage = open_storage(str(disk / "archive"))
    request = ArchiveRequest(topic="t", bundle_records=200)
    with pytest.raises(UnavailableError, match=r"tar\.gz\.\S+\.part: No space left on device"):
        create_archive(spark, *service, storage, request)
    assert files(disk) == {"manifest.jsonl.lock"}
    (disk / "ballast").unlink()
    assert (
        sum(entry.records for entry in create_archive(spark, *service, storage, request)) == COUNT
    )
    assert list_topic_archives(storage, "t")[0].verify()[1] == []


def test_a_table_that_does_not_fit_leaves_the_one_before(spark, service, disk):
    """The system's words for it, and none of the files that did fit."""
    request = TableRequest(topic="t", out=disk / "table")
    with pytest.raises(UnavailableError, match=r"part: No space left on device; mend"):
        build_table(spark, *service, request)
    assert files(disk) == {"_table.lock"}
    (disk / "ballast").unlink()
    assert build_table(spark, *service, request).rows == COUNT
