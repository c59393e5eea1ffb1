"""RECLAIM deletes only records that the broker has verified in a bundle and verifies again."""

from __future__ import annotations

import io
import os
import threading
from dataclasses import replace

import pytest

from cordwood.batch.records import decode_committed, encode_batch
from cordwood.broker.jobs import archive as service
from cordwood.cli import main
from cordwood.client import Client
from cordwood.errors import CorruptionError
from cordwood.lab.scenarios.stage import wait_until
from cordwood.metadata.bundle_index import decode_bundle
from cordwood.metadata.keys import encode
from cordwood.testing import Broker
from support.archives import HandMade
from support.http import JsonClient

RECORDS = 10
WHOLE = (0, RECORDS)


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


@pytest.fixture
def verified(broker, archive):
    """A bundle that the broker has read and verified."""
    (bundle,) = archive.add(WHOLE)
    assert tell(broker, bundle)["verified_end"] == RECORDS
    return bundle


def tell(broker, *bundles):
    options = {"topic": "t", "partition": 0, "bundles": list(bundles)}
    return JsonClient(broker.http).post("/api/archive", options)


def known(broker):
    (part,) = JsonClient(broker.http).get("/api/archive", topic="t")["partitions"]
    return part


def reclaim(broker):
    with Client(broker.control) as client:
        return client.reclaim("t")


def problem(broker):
    stats = JsonClient(broker.http).get("/api/health")
    return stats["maintenance_failed"].get("t-0", "")


def log_start(broker):
    return broker.service.broker.store.topic("t").partition(0).log_start_offset


def stored(broker):
    partition = broker.service.broker.store.topic("t").partition(0)
    return decode_committed(partition.read(0, 1 << 20).data)


def one_value(records):
    return [replace(r, value=b"forged 3") if r.offset == 3 else r for r in records]


def two_places(records):
    values = [r.value for r in records]
    values[2], values[7] = values[7], values[2]
    return [replace(r, value=value) for r, value in zip(records, values, strict=True)]


def one_time(records):
    return [replace(r, timestamp_ms=r.timestamp_ms + (r.offset == 9)) for r in records]


def with_keys(records):
    return [replace(r, key=b"k") for r in records]


@pytest.mark.parametrize("forge", [one_value, two_places, one_time, with_keys])
def test_other_contents_with_the_right_counts_and_checksums_release_nothing(broker, archive, forge):
    """A bundle with other records is refused, even if all its counts and checksums agree."""
    records = stored(broker)
    data = b"".join(bytes(encode_batch([each])) for each in forge(records))
    (bundle,) = archive.add(WHOLE, data=data)
    with pytest.raises(CorruptionError, match="than the log at offset"):
        tell(broker, bundle)
    assert known(broker)["bundles"] == []
    assert (reclaim(broker), stored(broker)) == (0, records)


@pytest.mark.parametrize(
    "changes",
    [{"first_ms": 2**70}, {"newest_ms": 0}, {"transactional": True}, {"records": 9}],
)
def test_an_entry_that_says_anything_else_of_its_bundle_is_refused(broker, archive, changes):
    """A restore selects bundles by their manifest entries, so a wrong entry is refused."""
    (bundle,) = archive.add(WHOLE, **changes)
    with pytest.raises(CorruptionError, match=f"has {next(iter(changes))} "):
        tell(broker, bundle)
    assert (known(broker)["bundles"], reclaim(broker)) == ([], 0)


def flip(path):
    """Flip one bit of the file; keep its size and times."""
    data, at = bytearray(path.read_bytes()), path.stat()
    data[len(data) // 2] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))


def forge_again(path):
    """Remove the file's last byte."""
    path.write_bytes(path.read_bytes()[:-1])


def empty_manifest(path):
    (path.parents[1] / "manifest.jsonl").write_bytes(b"")


@pytest.mark.parametrize(
    "harm", [lambda path: path.unlink(), flip, forge_again, empty_manifest],
    ids=["gone", "one bit", "shorter", "not a manifest entry"],
)  # fmt: skip
def test_a_bundle_lost_after_it_was_verified_releases_nothing(broker, archive, verified, harm):
    """RECLAIM verifies a bundle again before it deletes, and health reports a lost bundle."""
    path = archive.path(verified)
    manifest = path.parents[1] / "manifest.jsonl"
    good, entries = path.read_bytes(), manifest.read_bytes()
    harm(path)
    assert (reclaim(broker), log_start(broker)) == (0, 0)
    assert (known(broker)["archived_end"], known(broker)["verified_end"]) == (RECORDS, 0)
    assert "verified up to 0" in problem(broker)
    broker.restart()
    assert (reclaim(broker), log_start(broker)) == (0, 0), "a restart forgets nothing"
    path.write_bytes(good)
    manifest.write_bytes(entries)
    assert reclaim(broker) == 0, "it is verified again only when it is told again"
    assert tell(broker, verified)["verified_end"] == RECORDS
    assert problem(broker) == ""
    assert (reclaim(broker), log_start(broker)) == (1, RECORDS)


def test_a_place_that_is_away_when_segments_would_go_keeps_them(broker, verified, tmp_path):
    """If the archive is unreachable, RECLAIM deletes nothing and the bundle stays verified."""
    (tmp_path / "place").rename(tmp_path / "unmounted")
    assert (reclaim(broker), log_start(broker)) == (0, 0)
    assert known(broker)["verified_end"] == RECORDS
    assert "cannot see the archive" in problem(broker)
    (tmp_path / "unmounted").rename(tmp_path / "place")
    assert (reclaim(broker), log_start(broker)) == (1, RECORDS)
    assert problem(broker) == ""


def test_the_monitor_reads_bundles_again_before_it_deletes(broker, archive, verified):
    """Retention rounds of the monitor verify bundles again, as RECLAIM does."""
    monitor, path = broker.service.broker.monitor, archive.path(verified)
    good = path.read_bytes()
    path.unlink()
    broker.run(monitor.run_round)
    wait_until(lambda: problem(broker) != "", "the lost bundle is named")
    assert (log_start(broker), known(broker)["verified_end"]) == (0, 0)
    path.write_bytes(good)
    tell(broker, verified)
    broker.run(monitor.run_round)
    wait_until(lambda: log_start(broker) == RECORDS, "the segment is reclaimed")


def test_a_round_does_not_wait_for_a_slow_archive(broker, verified, monkeypatch):
    """A retention round returns while a bundle is still being read."""
    began, go_on = threading.Event(), threading.Event()
    confirm = service.confirm_bundles

    def slow(*arguments):
        began.set()
        assert go_on.wait(60)
        return confirm(*arguments)

    monkeypatch.setattr(service, "confirm_bundles", slow)
    monitor = broker.service.broker.monitor
    broker.run(monitor.run_round)  # returns although the bundle is still being read
    assert began.wait(60)
    broker.run(monitor.run_round)
    assert log_start(broker) == 0
    go_on.set()
    wait_until(lambda: log_start(broker) == RECORDS, "the segment is reclaimed")


def test_the_hard_cap_goes_without_the_archive(broker, archive, verified):
    """``retention.hard.bytes`` also deletes segments whose bundle is lost, to limit disk use."""
    archive.path(verified).unlink()
    assert reclaim(broker) == 0
    with Client(broker.control) as client:
        client.configure("t", {"retention.hard.bytes": "1"})
    assert reclaim(broker) == 1


def test_an_object_store_is_read_again_as_a_directory_is(broker, tmp_path):
    """Bundles in an object store are verified again, too. A file URL stands for a bucket."""
    pytest.importorskip("obstore")
    archive = HandMade(broker, f"file://{tmp_path}/bucket")
    (forged,) = archive.add(WHOLE, data=b"".join(map(one_batch, one_value(stored(broker)))))
    with pytest.raises(CorruptionError, match="than the log at offset 3"):
        tell(broker, forged)
    archive.entries.clear()
    (bundle,) = archive.add(WHOLE)
    assert tell(broker, bundle)["verified_end"] == RECORDS
    good = (tmp_path / "bucket" / bundle["name"]).read_bytes()
    archive.topic_archive.storage.put(bundle["name"], io.BytesIO(b"other"))
    assert (reclaim(broker), known(broker)["verified_end"]) == (0, 0)
    archive.topic_archive.storage.put(bundle["name"], io.BytesIO(good))
    tell(broker, bundle)
    assert reclaim(broker) == 1


def test_a_restore_from_a_manifest_the_broker_does_not_know_is_refused(
    broker, archive, verified, tmp_path, monkeypatch, capsys
):
    """A restore refuses a rewritten manifest, because the broker recorded the original entries."""
    forged = b"".join(map(one_batch, one_value(stored(broker))))
    archive.entries.clear()
    archive.add(WHOLE, data=forged)
    words = f"archive restore t --to new --dest {tmp_path}/place --broker {broker.kafka}"
    monkeypatch.setattr("sys.argv", ["cordwood", *words.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == CorruptionError.exit_code
    assert "not the one that was reported to the broker" in capsys.readouterr().err
    assert "new" not in broker.service.broker.store.topics


def one_batch(record):
    return bytes(encode_batch([record]))


def test_what_an_earlier_version_verified_by_counting_is_not_verified():
    """A bundle that an earlier version verified only by its record count must be verified again."""
    row = {
        "start_offset": 0, "end_offset": 4, "name": "n", "sha256": "s", "link": "l", "place": "p",
    }  # fmt: skip
    assert not decode_bundle(encode({**row, "verified": True})).verified
    assert decode_bundle(encode({**row, "verified": True, "unproven_records": 0})).verified
    assert not decode_bundle(encode({**row, "verified": False, "unproven_records": 0})).verified
