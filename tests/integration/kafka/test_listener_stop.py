"""A broker stopped under load from a Kafka producer keeps every acknowledged record."""

import itertools

import confluent_kafka
from confluent_kafka import TopicPartition

from support.lines import Served

TP = TopicPartition("t", 0, 0)
PATIENCE_S = 30


def test_sigterm_under_load_loses_nothing_that_was_acknowledged(tmp_path):
    """SIGTERM under load exits with 0 and keeps each acknowledged record at its offset."""
    acked = {}

    def note(error, message):
        if error is None:
            acked[message.offset()] = message.value()

    with Served(tmp_path / "data", kafka="127.0.0.1:0") as served:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": served.addresses["kafka"], "linger.ms": 1, "log_level": 0}
        )
        is_told = False
        for number in itertools.count():
            while len(producer) > 50_000 and not is_told:  # wait: kernels may still compile
                producer.poll(0.1)
            producer.produce("t", b"%d" % number, on_delivery=note)
            producer.poll(0)
            if not is_told and len(acked) > 2_000:
                served.process.terminate()
                is_told = True
            if is_told and (served.process.poll() is not None or len(producer) > 50_000):
                break
        assert served.end() == 0
        assert "undrained" not in (tmp_path / "data.log").read_text()
        producer.purge()
        producer.flush(PATIENCE_S)
    with Served(tmp_path / "data", kafka="127.0.0.1:0") as served:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": served.addresses["kafka"], "group.id": "g", "log_level": 0}
        )
        consumer.assign([TP])
        end = consumer.get_watermark_offsets(TP, PATIENCE_S)[1]
        found = {}
        while len(found) < end:
            messages = consumer.consume(end - len(found), PATIENCE_S)
            assert messages, f"{len(found)} of {end} came"
            found |= {message.offset(): message.value() for message in messages}
        consumer.close()
        assert served.stop() == 0
    assert len(acked) > 2_000
    assert acked.items() <= found.items()
