"""Appends: refusals and their codes, on the event loop and on the checking thread, in order."""

import asyncio
import random
import struct
from functools import partial

import pytest

from cordwood.batch import validation
from cordwood.batch.compression import compress
from cordwood.batch.header import HEADER_BYTES, parse_header, seal
from cordwood.batch.kernels.loader import load_kernels
from cordwood.batch.records import decode_committed, encode_batch
from cordwood.broker import batch_checks
from cordwood.codes import Code
from cordwood.config import MIB
from cordwood.errors import BatchTooLarge, CordwoodError, InvalidRecord
from cordwood.log.write.partition import Appended
from cordwood.model import Codec, Record, TimestampType
from cordwood.protocol.kafka.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from support.batches import LIES, batch_of, sample_records
from support.kafka_services import KafkaServices

NOW_MS = 1_700_000_000_000


async def produce(services, data, *, topic="t", partition=0, version=None):
    """Produce one batch over the Kafka protocol; return the partition's response."""
    topics = [ProduceTopic(topic, partitions=[ProducePartition(partition, data)])]
    response = await services.ask(ProduceRequest(None, -1, 1000, topics), version)
    return response.topics[0].partitions[0]


async def append(services, partition, data, **options) -> Appended:
    """Append one batch as a producer and wait for its outcome."""
    future = asyncio.get_running_loop().create_future()
    services.produce_service.append_then(partition, data, future.set_result, **options)
    outcome = await future
    if isinstance(outcome, CordwoodError):
        raise outcome
    return outcome


def repacked(batch: bytes, body: bytes, codec: Codec) -> bytes:
    """Return the batch with another body and a matching length, codec and checksum."""
    data = bytearray(batch[:HEADER_BYTES] + body)
    struct.pack_into(">i", data, 8, len(data) - 12)
    data[22] = data[22] & ~7 | codec.value
    seal(data, 0, len(data))
    return bytes(data)


def altered(position: int, layout: str, value: int, count: int = 3) -> bytes:
    """Return a valid batch with one header field changed and the checksum recomputed."""
    data = bytearray(encode_batch(sample_records(count)))
    struct.pack_into(layout, data, position, value)
    seal(data, 0, len(data))
    return bytes(data)


PACKED = [codec for codec in Codec if codec is not Codec.NONE]
SOUND = encode_batch(sample_records(20))
UNREADABLE = {
    **{f"{name}": data for name, data in LIES.items()},
    "garbage": repacked(SOUND, b"\xa5" * 500, Codec.NONE),
    "an empty body": repacked(SOUND, b"", Codec.NONE),
    **{
        f"{codec.name.lower()} {what}": repacked(SOUND, body, codec)
        for codec in PACKED
        for what, body in {
            "garbage": b"\xa5" * 500,
            "without a byte": b"",
            "of nothing": compress(codec, b""),
            "cut short": compress(codec, SOUND[HEADER_BYTES:])[:-9],
            "of garbage": compress(codec, b"\xa5" * 500),
            "of one record too few": compress(
                codec, encode_batch(sample_records(19))[HEADER_BYTES:]
            ),
            "of one record too many": compress(
                codec, encode_batch(sample_records(21))[HEADER_BYTES:]
            ),
            "and bytes behind": compress(codec, SOUND[HEADER_BYTES:] + b"\0"),
        }.items()
    },
}


@pytest.mark.parametrize("kernels_ready", [False, True], ids=["plain", "kernel"])
async def test_what_no_reader_could_decode_is_refused(tmp_path, monkeypatch, kernels_ready):
    """An undecodable batch gets INVALID_RECORD, which is not retriable. Nothing is appended."""
    load_kernels()
    monkeypatch.setattr(validation, "kernels_ready", lambda: kernels_ready)
    async with KafkaServices(tmp_path) as services:
        partition = (await services.create("t")).partition(0)
        for name, data in UNREADABLE.items():
            answer = await produce(services, data)
            assert answer.error_code == Code.INVALID_RECORD, name
            assert answer.error_message, name
        assert partition.log_end_offset == 0
        assert (await produce(services, SOUND)).error_code == Code.NONE


@pytest.mark.parametrize(
    ("data", "version", "code"),
    [
        pytest.param(SOUND[:-1] + b"\1", 9, Code.CORRUPT_MESSAGE, id="checksum"),
        pytest.param(SOUND[:-1], 9, Code.CORRUPT_MESSAGE, id="cut short"),
        pytest.param(b"", 9, Code.INVALID_RECORD, id="no batch"),
        pytest.param(SOUND + SOUND, 9, Code.INVALID_RECORD, id="two batches"),
        pytest.param(
            encode_batch(sample_records(3, start=5)), 9, Code.INVALID_RECORD, id="base offset"
        ),
        pytest.param(altered(21, ">h", 0x20), 9, Code.INVALID_RECORD, id="control"),
        pytest.param(altered(21, ">h", 6), 9, Code.UNSUPPORTED_COMPRESSION_TYPE, id="codec"),
        pytest.param(altered(21, ">h", 0x08), 9, Code.INVALID_TIMESTAMP, id="append time"),
        pytest.param(
            encode_batch(sample_records(3), codec=Codec.ZSTD),
            6,
            Code.UNSUPPORTED_COMPRESSION_TYPE,
            id="zstd before version 7",
        ),
        pytest.param(altered(43, ">q", 7), 9, Code.INVALID_RECORD, id="producer without epoch"),
    ],
)
async def test_each_refusal_has_the_code_kafkas_broker_gives(tmp_path, data, version, code):
    """Only damaged bytes get a retriable code (CORRUPT_MESSAGE); nothing is appended."""
    async with KafkaServices(tmp_path) as services:
        partition = (await services.create("t")).partition(0)
        assert (await produce(services, data, version=version)).error_code == code
        assert partition.log_end_offset == 0


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("is_for_loop", [True, False], ids=["on the loop", "beside it"])
async def test_a_newest_timestamp_that_lies_is_set_right(tmp_path, codec, is_for_loop):
    """The broker corrects the header, as Kafka does: retention and time lookups rely on it."""
    lying = encode_batch(
        [Record(n, NOW_MS + n, None, b"v") for n in range(5)],
        codec=codec,
        max_timestamp_ms=2**62,
    )
    async with KafkaServices(tmp_path) as services:
        partition = (await services.create("t")).partition(0)
        await append(services, partition, lying, is_for_loop=is_for_loop)
        stored = partition.read(0, 1 << 20).data
        assert parse_header(stored).max_timestamp_ms == NOW_MS + 4
        assert [record.offset for record in decode_committed(stored)] == [0, 1, 2, 3, 4]


async def test_a_topic_refuses_timestamps_too_far_from_its_clock(tmp_path):
    """Such a timestamp gets INVALID_TIMESTAMP. A topic with LogAppendTime accepts any."""
    async with KafkaServices(tmp_path) as services:
        limits = {
            "message_timestamp_before_max_ms": 3_600_000,
            "message_timestamp_after_max_ms": 3_600_000,
        }
        await services.create("near", **limits)
        await services.create("own", message_timestamp_type="LogAppendTime", **limits)
        now_ms = services.clock.now_ms()
        for ahead_ms, code in [(0, 0), (-4_000_000, 32), (4_000_000, 32), (-now_ms - 1, 0)]:
            data = encode_batch([Record(0, now_ms + ahead_ms, None, b"v")])
            assert (await produce(services, data, topic="near")).error_code == code
            assert (await produce(services, data, topic="own")).error_code == Code.NONE


@pytest.mark.parametrize("codec", PACKED)
async def test_a_batch_that_inflates_past_the_limit_is_too_large(tmp_path, codec):
    """Such a batch gets BatchTooLarge, so its client may split it. One just below is accepted."""
    async with KafkaServices(tmp_path, message_inflated_bytes_max=1 << 20) as services:
        partition = (await services.create("t", max_message_bytes=1 << 24)).partition(0)
        fits = encode_batch([Record(0, NOW_MS, None, bytes(1_000_000))], codec=codec)
        bomb = encode_batch([Record(0, NOW_MS, None, bytes(1_100_000))], codec=codec)
        assert (await append(services, partition, fits)).base_offset == 0
        with pytest.raises(BatchTooLarge, match=r"message\.inflated\.bytes\.max"):
            await append(services, partition, bomb)


def is_beside(services, partition, data) -> bool:
    """Append a batch; return whether it is checked on the other thread."""
    services.produce_service.append_then(partition, data, lambda _: None)
    return services.produce_service.checking_bytes > 0


LONG = {
    "many bytes": [Record(0, NOW_MS, None, bytes(batch_checks.LOOP_BYTES))],
    "a few that inflate far": [Record(0, NOW_MS, None, bytes(batch_checks.LOOP_INFLATED_BYTES))],
    "many compressed": [
        Record(0, NOW_MS, None, random.Random(1).randbytes(batch_checks.LOOP_PACKED_BYTES))
    ],
    "many records": [
        Record(n, NOW_MS, None, b"") for n in range(batch_checks.LOOP_PLAIN_RECORDS + 1)
    ],
}


@pytest.mark.parametrize(
    ("name", "codec", "kernels_ready", "is_long"),
    [
        ("many bytes", Codec.NONE, True, True),
        ("a few that inflate far", Codec.ZSTD, True, True),
        ("a few that inflate far", Codec.NONE, True, False),
        ("many compressed", Codec.ZSTD, True, True),
        ("many compressed", Codec.NONE, True, False),
        ("many records", Codec.NONE, False, True),
        ("many records", Codec.NONE, True, False),
    ],
)
async def test_what_takes_long_to_check_is_checked_beside_the_loop(
    tmp_path, monkeypatch, name, codec, kernels_ready, is_long
):
    """The limits are bytes, compressed and inflated bytes, and records if no kernel is loaded."""
    load_kernels()
    monkeypatch.setattr(batch_checks, "kernels_ready", lambda: kernels_ready)
    async with KafkaServices(tmp_path) as services:
        partition = (await services.create("t", max_message_bytes=1 << 24)).partition(0)
        data = encode_batch(LONG[name], codec=codec)
        assert is_beside(services, partition, data) is is_long


async def test_batches_checked_beside_the_loop_keep_their_order(tmp_path):
    """A small batch that arrives while a large one is being checked is appended after it."""
    small = encode_batch([Record(0, NOW_MS, None, b"small")])
    large = encode_batch([Record(0, NOW_MS, None, bytes(batch_checks.LOOP_BYTES))])
    async with KafkaServices(tmp_path) as services:
        topic = await services.create("t", 2, max_message_bytes=1 << 24)
        first, other = topic.partition(0), topic.partition(1)
        outcomes = [
            asyncio.ensure_future(append(services, partition, data))
            for partition, data in [(first, large), (first, small), (first, large), (other, small)]
        ]
        await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
        found = [(await outcome).base_offset for outcome in outcomes]
        assert found == [0, 1, 2, 0]
        assert services.produce_service.checking_bytes == 0
        assert (await append(services, first, small)).base_offset == 3, "on the loop again"


async def test_a_refusal_on_a_thread_is_reported_and_lets_the_next_request_pass(tmp_path):
    """A refused batch uses no offset and does not delay the next batch."""
    large = bytearray(encode_batch([Record(0, NOW_MS, None, bytes(batch_checks.LOOP_BYTES))]))
    bad = batch_of(bytes(batch_checks.LOOP_BYTES))
    async with KafkaServices(tmp_path) as services:
        partition = (await services.create("t", max_message_bytes=1 << 24)).partition(0)
        refused = asyncio.ensure_future(append(services, partition, bad))
        taken = asyncio.ensure_future(append(services, partition, large))
        with pytest.raises(InvalidRecord, match="record 0 of 1 cannot be read"):
            await refused
        assert (await taken).base_offset == 0


async def test_a_batch_is_admitted_in_the_step_that_hands_it_over(tmp_path):
    """A batch is refused if its transaction ends while the batch is being checked."""
    large = encode_batch([Record(0, NOW_MS, None, bytes(batch_checks.LOOP_BYTES))])
    is_open = True

    def admit(_header):
        if not is_open:
            raise InvalidRecord("too late")

    async with KafkaServices(tmp_path) as services:
        partition = (await services.create("t", max_message_bytes=1 << 24)).partition(0)
        outcome = asyncio.get_running_loop().create_future()
        services.produce_service.append_then(partition, large, outcome.set_result, admit=admit)
        is_open = False
        assert str(await outcome) == "too late"
        assert partition.log_end_offset == 0


FEW, MANY = 1, validation.KERNEL_RECORDS_MIN * 3


@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("kernels_ready", [False, True], ids=["plain", "kernel"])
async def test_a_compacted_topic_refuses_a_record_without_a_key(
    tmp_path, monkeypatch, count, codec, kernels_ready
):
    """The rule holds with and without kernels and for any batch size. An empty key is a key."""
    load_kernels()
    monkeypatch.setattr(validation, "kernels_ready", lambda: kernels_ready)
    keyed = [Record(n, 1, b"", b"v") for n in range(count)]
    keyless = [*keyed[:-1], Record(count - 1, 1, None, b"v")]
    async with KafkaServices(tmp_path) as services:
        topic = await services.create("latest", cleanup_policy="compact")
        partition = topic.partition(0)
        appended = await append(services, partition, encode_batch(keyed, codec=codec))
        assert appended.last_offset == count - 1
        with pytest.raises(InvalidRecord, match="latest is compacted"):
            await append(services, partition, encode_batch(keyless, codec=codec))
        assert partition.log_end_offset == count


@pytest.mark.parametrize("name", ["garbage", "gzip of one record too few", "key length of -2"])
async def test_staged_batches_are_checked_the_same(tmp_path, name):
    """Batches from Spark or an archive get the same checks, but may carry append timestamps."""
    async with KafkaServices(tmp_path) as services:
        partition = (await services.create("t")).partition(0)
        by_broker = encode_batch(
            sample_records(2), codec=Codec.LZ4, timestamp_type=TimestampType.APPEND
        )
        staged = encode_batch(sample_records(3, start=7)) + by_broker
        assert len(services.produce_service.check(partition, staged, 1 << 20)) == 2
        for bad in (staged + UNREADABLE[name], UNREADABLE[name] + staged):
            with pytest.raises(InvalidRecord):
                services.produce_service.check(partition, bad, 1 << 20)


def test_a_staged_batch_that_inflates_past_the_limit_is_refused():
    """A staged batch above the inflated limit is refused; a batch just below it is accepted."""
    fits, bomb = (
        encode_batch([Record(0, NOW_MS, None, bytes(size))], codec=Codec.ZSTD)
        for size in (1_000_000, 1_100_000)
    )
    limits = {"batch_bytes_max": MIB, "inflated_bytes_max": MIB}
    check = partial(batch_checks.check_staged, topic="t", needs_keys=False, **limits)
    assert len(check(fits)) == 1
    with pytest.raises(BatchTooLarge, match="more than 1048576 bytes uncompressed"):
        check(fits + bomb)
