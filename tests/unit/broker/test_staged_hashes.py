"""A delivery appends exactly the bytes its request named by sha256; a CRC32C can be forged."""

from __future__ import annotations

import hashlib

import pytest

from cordwood.batch.header import crc32c
from cordwood.broker.jobs.delivery import DeliveryService
from cordwood.broker.jobs.staged_parts import ReadBuffers
from cordwood.decide.delivery import Part
from cordwood.errors import QuarantinedDelivery, RequestError, UnknownJob
from cordwood.log.staging.area import StagingArea
from cordwood.testing import Broker
from support.deliveries import a_delivery, deliver, ensure, stage, words
from support.forgery import forged_batch
from support.http import JsonClient

WORD = "acknowledged-and-a-little-longer-than-that"
PARTS = [Part("a", 0, "x")]


@pytest.fixture
def broker(tmp_path):
    with Broker(tmp_path / "data", durability="os") as running:
        ensure(running, "in", "a")
        stage(running, "job", x=WORD)
        yield running


def staged_file(broker, job="job"):
    return broker.data / "staging" / job / "x"


def forge(path):
    """Write another valid batch of the same size and CRC32C; return the original bytes."""
    good = path.read_bytes()
    forged = forged_batch(good, b"k", b"forged")
    assert (forged != good, crc32c(forged)) == (True, crc32c(good))
    path.write_bytes(forged)
    return good


def test_a_file_forged_between_the_check_and_the_append_is_not_appended(broker, monkeypatch):
    """A forged file with the right size and CRC32C is refused, because its sha256 differs.

    Once the file has its accepted bytes again, a retry completes the delivery.
    """
    write_down, good = DeliveryService._record, []

    def forge_then_record(*arguments):
        good.append(forge(staged_file(broker)))
        return write_down(*arguments)

    monkeypatch.setattr(DeliveryService, "_record", forge_then_record)
    with pytest.raises(UnknownJob, match="x changed after it was staged"):
        deliver(broker, a_delivery(parts=PARTS))
    assert words(broker, "a") == []
    assert "changed" in broker.service.broker.deliveries.quarantined["q"]
    staged_file(broker).write_bytes(good[0])
    broker.run(broker.service.broker.deliveries.retry_quarantined)
    assert words(broker, "a") == [WORD]


def test_a_file_forged_while_the_broker_is_down_is_not_appended(broker, monkeypatch):
    """A restart quarantines a delivery whose file differs from the accepted bytes."""

    async def stop(*_):
        raise UnknownJob("the broker stops here")

    with monkeypatch.context() as patch:
        patch.setattr(DeliveryService, "_finish", stop)
        with pytest.raises(UnknownJob):
            deliver(broker, a_delivery(parts=PARTS))
    forge(staged_file(broker))
    broker.restart()
    assert words(broker, "a") == []
    assert "changed" in broker.service.broker.deliveries.quarantined["q"]


def test_a_file_forged_before_the_request_is_refused_over_http(broker):
    """The request names the sha256 of the intended bytes, so a forged file is refused."""
    good = staged_file(broker).read_bytes()
    forge(staged_file(broker))
    part = {"topic": "a", "partition": 0, "file": "x", "sha256": hashlib.sha256(good).hexdigest()}
    options = {"query": "q", "batch": 0, "job": "job", "parts": [part]}
    with pytest.raises(UnknownJob, match="x changed after it was staged"):
        JsonClient(broker.http).post("/api/deliveries", options)
    listed = JsonClient(broker.http).get("/api/deliveries")["deliveries"]
    assert (words(broker, "a"), listed) == ([], {})
    staged_file(broker).write_bytes(good)
    assert JsonClient(broker.http).post("/api/deliveries", options) == {"delivered": True}
    assert words(broker, "a") == [WORD]


@pytest.mark.parametrize("sha256", [None, "", "x", "A" * 64, "0" * 63])
def test_a_part_without_a_hash_is_refused(broker, sha256):
    """Every part must have a valid sha256; it cannot be omitted."""
    part = {"topic": "a", "partition": 0, "file": "x", "sha256": sha256}
    options = {"query": "q", "batch": 0, "job": "job", "parts": [part]}
    with pytest.raises(RequestError, match="sha256"):
        JsonClient(broker.http).post("/api/deliveries", options)
    assert words(broker, "a") == []


def test_a_delivery_an_earlier_version_accepted_without_a_hash_waits(broker, monkeypatch):
    """A delivery stored without a hash is quarantined. Staging it again with a hash delivers it."""
    number = broker.service.broker.deliveries._appender.number

    async def without_hash(*arguments):
        return tuple(part._replace(sha256="") for part in await number(*arguments))

    with monkeypatch.context() as patch:
        patch.setattr(broker.service.broker.deliveries._appender, "number", without_hash)
        with pytest.raises(UnknownJob):
            deliver(broker, a_delivery(parts=PARTS))
    with pytest.raises(QuarantinedDelivery):
        deliver(broker, a_delivery(1, parts=PARTS))
    stage(broker, "anew", x=WORD)
    assert deliver(broker, a_delivery(job="anew", parts=PARTS))
    assert words(broker, "a") == [WORD]


def test_each_of_several_files_is_held_against_its_own_hash(tmp_path):
    """Each file is checked on its own, so bytes moved from one file to the next are detected."""
    files = {"one": b"first", "two": b"second!"}
    parts = [Part("a", 0, n, sha256=hashlib.sha256(d).hexdigest()) for n, d in files.items()]
    area, directory = StagingArea(tmp_path), ReadBuffers()
    with area.new_job("job") as job:
        for name, data in files.items():
            job.write(name, [data])
        assert bytes(directory.read(job, parts)) == b"firstsecond!"
        job.write("one", [b"firsts"])
        job.write("two", [b"econd!"])
        with pytest.raises(UnknownJob, match="one changed"):
            directory.read(job, parts)
