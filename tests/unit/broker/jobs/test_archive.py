"""What the broker stores about the archive, what it verifies itself, and what it refuses."""

from __future__ import annotations

import threading

import pytest

from cordwood.batch.records import encode_batch
from cordwood.broker.jobs import archive as service
from cordwood.client import Client
from cordwood.client.kafka import KafkaClient
from cordwood.errors import (
    CordwoodError,
    CorruptionError,
    OffsetOutOfRange,
    RequestError,
    StaleManifest,
)
from cordwood.model import Record
from cordwood.testing import Broker
from support.archives import HandMade
from support.http import JsonClient

RECORDS = 10


@pytest.fixture
def broker():
    with Broker(durability="os", monitor_interval_ms=3_600_000) as broker:
        with Client(broker.control) as client:
            client.register("t", "r")
            client.configure("t", {"cleanup.policy": "consume", "archive.required": "true"})
            for i in range(RECORDS):
                client.put("t", f"record {i}")
            client.cut("t")
            client.ack("t", "r", RECORDS)
        yield broker


@pytest.fixture
def archive(broker, tmp_path):
    return HandMade(broker, tmp_path / "place")


def tell(broker, *bundles, partition=0):
    options = {"topic": "t", "partition": partition, "bundles": list(bundles)}
    return JsonClient(broker.http).post("/api/archive", options)


def known(broker):
    (part,) = JsonClient(broker.http).get("/api/archive", topic="t")["partitions"]
    return part


def reclaim(broker):
    with Client(broker.control) as client:
        return client.reclaim("t")


def test_bundles_are_recorded_in_order_and_once(broker, archive):
    """A repeated report changes nothing. Bundles and their verification survive a restart."""
    first = archive.add((0, 4), (4, 6))
    assert tell(broker, *first) == {"archived_end": 6, "verified_end": 6, "unverified": None}
    assert tell(broker, *first)["archived_end"] == 6
    assert tell(broker, *archive.add((6, 10)))["verified_end"] == 10
    broker.restart()
    part = known(broker)
    assert (part["archived_end"], part["verified_end"]) == (10, 10)
    assert [bundle["name"] for bundle in part["bundles"]] == [
        archive.as_sent(entry)["name"] for entry in archive.entries
    ]


@pytest.mark.parametrize("spans", [[(1, 4)], [(0, 4), (5, 6)], [(0, 4), (3, 6)]])
def test_a_bundle_that_does_not_follow_is_refused(broker, archive, spans):
    """A report with a gap or an overlap is refused, and none of its bundles is recorded."""
    with pytest.raises(StaleManifest):
        tell(broker, *archive.add(*spans))
    assert known(broker)["bundles"] == []


def test_a_bundle_with_another_link_is_refused(broker, archive):
    """A bundle with another link would fork the hash chain, so it is refused."""
    (bundle,) = archive.add((0, 4))
    tell(broker, bundle)
    with pytest.raises(StaleManifest):
        tell(broker, bundle | {"link": "another"})


@pytest.mark.parametrize("span", [(0, 0), (0, 11)])
def test_a_bundle_of_records_that_are_not_there_is_refused(broker, archive, span):
    """A bundle must cover existing records of the log."""
    with pytest.raises(CordwoodError):
        tell(broker, *archive.add(span))
    assert known(broker)["bundles"] == []


def test_a_reclaimed_record_is_found_in_its_bundle(broker, archive):
    """A reclaimed record's status names its bundle; a read of it names the restore command."""
    with Client(broker.control) as client:
        assert client.reclaim("t") == 0
        sent = archive.add((0, 4), (4, 9))
        tell(broker, *sent)
        assert client.reclaim("t") == 0, "the segment is not wholly archived"
        sent += archive.add((9, 10))
        tell(broker, sent[-1])
        assert client.reclaim("t") == 1
        statuses = [client.status(seq, "t").bundle for seq in (1, 4, 5, 10)]
        assert statuses == [sent[at]["name"] for at in (0, 0, 1, 2)]
        with (
            client.subscribe("t", from_seq=5) as lines,
            pytest.raises(OffsetOutOfRange, match="cordwood archive restore t"),
        ):
            next(lines)


def test_bundles_go_with_the_topic(broker, archive):
    """Deleting a topic deletes its bundle records. Old bundles are refused for its successor."""
    sent = archive.add((0, 10))
    tell(broker, *sent)
    with KafkaClient(broker.kafka) as client:
        client.delete_topic("t")
        client.create_topic("t", 1, {"archive.required": "true"})
    with Client(broker.control) as client:
        for i in range(RECORDS):
            client.put("t", f"another {i}")
    assert known(broker)["archived_end"] == 0
    with pytest.raises(StaleManifest, match="created again"):
        tell(broker, *sent)
    assert known(broker)["bundles"] == []


def lose(archive, bundle):
    archive.path(bundle).unlink()


def flip(archive, bundle):
    data = bytearray(archive.path(bundle).read_bytes())
    data[len(data) // 2] ^= 1
    archive.path(bundle).write_bytes(data)


def cut_short(archive, bundle):
    archive.path(bundle).write_bytes(archive.path(bundle).read_bytes()[:-20])


def forget(archive, bundle):
    archive.topic_archive.write_manifest([])


def damage_manifest(archive, bundle):
    path = archive.path(bundle).parents[1] / "manifest.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"records":10', b'"records":11'))


@pytest.mark.parametrize("harm", [lose, flip, cut_short, forget, damage_manifest])
def test_a_bundle_that_differs_from_its_report_is_refused_and_releases_nothing(
    broker, archive, harm
):
    """The broker reads the manifest and the bundle itself and does not rely on the report."""
    (bundle,) = archive.add((0, 10))
    harm(archive, bundle)
    with pytest.raises(CorruptionError):
        tell(broker, bundle)
    assert known(broker)["bundles"] == []
    assert reclaim(broker) == 0


def some_records(count):
    return encode_batch([Record(i, 0, None, b"x") for i in range(count)])


@pytest.mark.parametrize(
    ("data", "changes"),
    [
        (b"", {}),
        (some_records(9), {}),
        (some_records(10), {"records": 9}),
    ],
)
def test_a_bundle_with_too_few_records_is_refused(broker, archive, data, changes):
    """The broker compares with the segment's own record count, even if hash and entry agree."""
    (bundle,) = archive.add((0, 10), data=data, **changes)
    with pytest.raises(CorruptionError):
        tell(broker, bundle)
    assert reclaim(broker) == 0


def test_a_place_the_broker_cannot_see_releases_nothing_until_it_can(broker, archive, tmp_path):
    """An unreachable bundle is recorded as unverified and is verified by a later report."""
    (bundle,) = archive.add((0, 10))
    (tmp_path / "place").rename(tmp_path / "unmounted")
    answer = tell(broker, bundle)
    assert (answer["archived_end"], answer["verified_end"]) == (10, 0)
    assert str(tmp_path / "place") in answer["unverified"]
    assert [each["verified"] for each in known(broker)["bundles"]] == [False]
    assert reclaim(broker) == 0
    (tmp_path / "unmounted").rename(tmp_path / "place")
    assert tell(broker, bundle) == {"archived_end": 10, "verified_end": 10, "unverified": None}
    assert reclaim(broker) == 1


def test_a_topic_may_believe_its_jobs(broker, archive, tmp_path):
    """With ``archive.verified.by=job``, RECLAIM accepts bundles the broker has not verified."""
    (bundle,) = archive.add((0, 10))
    (tmp_path / "place").rename(tmp_path / "elsewhere")
    tell(broker, bundle)
    assert reclaim(broker) == 0
    with Client(broker.control) as client:
        client.configure("t", {"archive.verified.by": "job"})
    assert reclaim(broker) == 1


@pytest.mark.parametrize("place", ["relative/path", "http://127.0.0.1:1/x", "s3a://"])
def test_a_place_that_cannot_be_is_one_the_broker_cannot_see(broker, archive, place):
    """A relative path or an unsupported URL is recorded as unverified and releases nothing."""
    (bundle,) = archive.add((0, 10))
    answer = tell(broker, bundle | {"place": place})
    assert (answer["verified_end"], bool(answer["unverified"])) == (0, True)
    assert reclaim(broker) == 0


@pytest.mark.parametrize("place", ["{}/staging", "file://{}/staging", "{}/t-0/../staging", "{}"])
def test_bundles_in_the_brokers_own_directory_are_refused(broker, archive, place):
    """The broker deletes files below its data directory, so bundles there are refused."""
    (bundle,) = archive.add((0, 10))
    with pytest.raises(RequestError, match="inside the broker's data directory; archive to"):
        tell(broker, bundle | {"place": place.format(broker.data)})
    assert (known(broker)["bundles"], reclaim(broker)) == ([], 0)


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_looking_at_a_place_makes_nothing_there(broker, archive, tmp_path, form):
    """The broker only reads at the reported location and creates no directory there."""
    (bundle,) = archive.add((0, 10))
    answer = tell(broker, bundle | {"place": form.format(tmp_path / "not" / "there")})
    assert (answer["verified_end"], bool(answer["unverified"])) == (0, True)
    assert not (tmp_path / "not").exists()


def test_bundles_in_the_directory_for_them_are_taken(broker):
    """``archive`` in the data directory is the default location, so it is accepted."""
    (bundle,) = HandMade(broker, broker.data / "archive").add((0, 10))
    assert tell(broker, bundle)["verified_end"] == 10


@pytest.mark.parametrize("name", ["../../t/0/x.tar.gz", "/etc/passwd", "t/0", ""])
def test_a_name_is_never_a_callers_choice(broker, archive, name):
    """The bundle's name must match the topic, its id and the offsets."""
    (bundle,) = archive.add((0, 10))
    with pytest.raises(RequestError):
        tell(broker, bundle | {"name": name})
    assert known(broker)["bundles"] == []


@pytest.mark.parametrize("bundles", [None, {}, ["x"], [None], [{}], [[]]])
def test_a_malformed_message_is_refused(broker, bundles):
    """A malformed report is refused with a request error."""
    options = {"topic": "t", "partition": 0, "bundles": bundles}
    with pytest.raises(RequestError):
        JsonClient(broker.http).post("/api/archive", options)


def test_an_object_store_is_read_as_a_directory_is(broker, tmp_path):
    """Bundles in an object store are verified, too. A file URL stands for a bucket."""
    pytest.importorskip("obstore")
    archive = HandMade(broker, f"file://{tmp_path}/bucket")
    (bundle,) = archive.add((0, 10))
    archive.topic_archive.storage.move(bundle["name"], f"{bundle['name']}.away")
    with pytest.raises(CorruptionError):
        tell(broker, bundle)
    archive.topic_archive.storage.move(f"{bundle['name']}.away", bundle["name"])
    assert tell(broker, bundle)["verified_end"] == 10
    assert reclaim(broker) == 1


def test_others_are_served_while_a_bundle_is_read(broker, archive, monkeypatch):
    """Bundles are read off the event loop, so a slow archive delays only its own job."""
    began, go_on = threading.Event(), threading.Event()
    verify = service.verify_bundles

    def slow(*arguments):
        began.set()
        assert go_on.wait(60)
        return verify(*arguments)

    monkeypatch.setattr(service, "verify_bundles", slow)
    (bundle,) = archive.add((0, 10))
    answers = []
    telling = threading.Thread(target=lambda: answers.append(tell(broker, bundle)))
    telling.start()
    assert began.wait(60)
    with Client(broker.control) as client:
        client.put("t", "meanwhile")
    assert known(broker)["bundles"] == []
    go_on.set()
    telling.join()
    assert answers[0]["verified_end"] == 10


def test_a_topic_deleted_while_its_bundle_is_read_gets_no_record(broker, archive, monkeypatch):
    """If the topic is created again while its bundle is read, the report is refused."""
    verify = service.verify_bundles

    def recreate(*arguments):
        verified = verify(*arguments)
        with KafkaClient(broker.kafka) as client:
            client.delete_topic("t")
            client.create_topic("t", 1, {})
        with Client(broker.control) as client:
            for i in range(RECORDS):
                client.put("t", f"another {i}")
        return verified

    monkeypatch.setattr(service, "verify_bundles", recreate)
    with pytest.raises(StaleManifest):
        tell(broker, *archive.add((0, 10)))
    assert known(broker)["bundles"] == []
