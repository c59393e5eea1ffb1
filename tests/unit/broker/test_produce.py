"""The desk for appends: what a topic's policy refuses, whichever way the records are looked at."""

import pytest

from cordwood.batch.records import encode_batch
from cordwood.batch.warmth import warm
from cordwood.broker import produce
from cordwood.errors import InvalidRecord
from cordwood.model import Codec, Record
from support.kafka_desks import KafkaDesks

FEW, MANY = produce.KERNEL_RECORDS - 1, produce.KERNEL_RECORDS * 3


def batches(count: int, codec: Codec, *, keyless: bool) -> bytes:
    """Two batches, the last record of the second with or without a key."""
    half = count // 2
    first = encode_batch([Record(i, 1, b"", b"v") for i in range(half)], codec=codec)
    keys = [b"k"] * (count - half - 1) + [None if keyless else b"k"]
    second = [Record(i, 1, key, None if key else b"v") for i, key in enumerate(keys)]
    return first + encode_batch(second, codec=codec)


@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("is_warm", [False, True], ids=["plain", "kernel"])
async def test_a_compacted_topic_refuses_a_record_without_a_key(
    tmp_path, monkeypatch, count, codec, is_warm
):
    """Before the kernels are loaded and after, in small requests and large."""
    warm()
    monkeypatch.setattr(produce, "is_warm", lambda: is_warm)
    async with KafkaDesks(tmp_path) as desks:
        topic = await desks.create("latest", cleanup_policy="compact")
        partition = topic.partition(0)
        appended = await desks.produce_desk.append(partition, batches(count, codec, keyless=False))
        assert appended.last_offset == count - 1
        with pytest.raises(InvalidRecord, match="latest is compacted"):
            await desks.produce_desk.append(partition, batches(count, codec, keyless=True))
        assert partition.next_offset == count
