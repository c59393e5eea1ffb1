"""A refused batch names the records at fault (KIP-467), so that a client can resend the rest."""

import pytest

from cordwood.batch import refused_records
from cordwood.batch.kernels.loader import load_kernels
from cordwood.batch.records import encode_batch
from cordwood.broker import batch_checks
from cordwood.codes import Code
from cordwood.model import Codec, Record
from cordwood.protocol.kafka.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from support.batches import LIES, batch_of
from support.kafka_services import KafkaServices

VERSION = 9  # the first with names is 8
HOUR_MS = 3_600_000


async def produce(services, data, version=VERSION):
    """Produce one batch to topic t; return the partition's response."""
    topics = [ProduceTopic("t", partitions=[ProducePartition(0, data)])]
    response = await services.ask(ProduceRequest(None, -1, 1000, topics), version)
    return response.topics[0].partitions[0]


def indexes(answer) -> list[int]:
    """Return the indexes of the records that a response names."""
    return [error.batch_index for error in answer.record_errors]


@pytest.fixture(params=[False, True], ids=["plain", "kernel"])
def either_way(request, monkeypatch):
    """Run the test without kernels, and with them."""
    load_kernels()
    monkeypatch.setattr(refused_records, "kernels_ready", lambda: request.param)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD], ids=["plain", "packed"])
async def test_each_record_without_a_key_is_named(tmp_path, codec):
    """Only the records without a key are named, each with a reason; nothing is stored."""
    async with KafkaServices(tmp_path) as services:
        partition = (await services.create("t", cleanup_policy="compact")).partition(0)
        now_ms = services.clock.now_ms()
        records = [Record(n, now_ms, b"k" if n not in (3, 7) else None, b"v") for n in range(10)]
        answer = await produce(services, encode_batch(records, codec=codec))
        assert answer.error_code == Code.INVALID_RECORD
        assert indexes(answer) == [3, 7]
        assert all("requires a key" in error.message for error in answer.record_errors)
        assert answer.error_message.startswith("2 of 10 records are refused; record 3: ")
        assert partition.log_end_offset == 0


@pytest.mark.usefixtures("either_way")
async def test_each_timestamp_out_of_range_is_named(tmp_path):
    """Too early and too late ones are named with their bound; no timestamp (-1) is accepted."""
    async with KafkaServices(tmp_path) as services:
        limits = dict.fromkeys(
            ("message_timestamp_before_max_ms", "message_timestamp_after_max_ms"), HOUR_MS
        )
        await services.create("t", **limits)
        now_ms = services.clock.now_ms()
        times = [now_ms, now_ms - 2 * HOUR_MS, -1, now_ms + 2 * HOUR_MS]
        answer = await produce(
            services, encode_batch([Record(n, at, None, b"v") for n, at in enumerate(times)])
        )
        assert answer.error_code == Code.INVALID_TIMESTAMP
        assert indexes(answer) == [1, 3]
        early, late = (error.message for error in answer.record_errors)
        assert "message.timestamp.before.max.ms" in early
        assert str(times[1]) in early
        assert "message.timestamp.after.max.ms" in late


async def test_one_bad_timestamp_decides_the_code_as_in_kafka(tmp_path):
    """With both faults in a batch the code is INVALID_TIMESTAMP, and each record has its reason."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t", cleanup_policy="compact", message_timestamp_after_max_ms=HOUR_MS)
        now_ms = services.clock.now_ms()
        records = [
            Record(0, now_ms + 2 * HOUR_MS, b"k", b"v"),
            Record(1, now_ms, None, b"v"),
            Record(2, now_ms + 2 * HOUR_MS, None, b"v"),
            Record(3, now_ms, b"k", b"v"),
        ]
        answer = await produce(services, encode_batch(records))
        assert answer.error_code == Code.INVALID_TIMESTAMP
        assert indexes(answer) == [0, 1, 2]
        is_about_key = ["requires a key" in error.message for error in answer.record_errors]
        assert is_about_key == [False, True, True]


async def test_a_batch_checked_beside_the_loop_names_its_records_too(tmp_path):
    """A large batch is checked on a thread, with the same reply."""
    large = [Record(0, 0, b"k", bytes(batch_checks.LOOP_BYTES)), Record(1, 0, None, b"v")]
    async with KafkaServices(tmp_path) as services:
        await services.create("t", cleanup_policy="compact", max_message_bytes=1 << 24)
        answer = await produce(services, encode_batch(large))
        assert (answer.error_code, indexes(answer)) == (Code.INVALID_RECORD, [1])


async def test_a_record_that_cannot_be_read_is_named(tmp_path):
    """The record at which decoding fails is named, unless the batch as a whole is at fault."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        answer = await produce(services, batch_of(bytes(100)))
        assert indexes(answer) == [0]
        assert answer.record_errors[0].message.startswith("cannot be read: ")
        assert indexes(await produce(services, LIES["count above the bytes"])) == []


async def test_a_refusal_names_a_limited_number_of_records(tmp_path):
    """The message still counts all of them."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t", cleanup_policy="compact")
        count = batch_checks.RECORD_ERRORS_MAX + 1
        records = [Record(n, 0, None, b"") for n in range(count)]
        answer = await produce(services, encode_batch(records))
        assert indexes(answer) == list(range(batch_checks.RECORD_ERRORS_MAX))
        assert answer.error_message.startswith(f"{count} of {count} records are refused")


async def test_a_version_before_the_names_still_gets_the_code(tmp_path):
    """Produce 7 has no place for them."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t", cleanup_policy="compact")
        answer = await produce(services, encode_batch([Record(0, 0, None, b"")]), version=7)
        assert answer.error_code == Code.INVALID_RECORD
