"""Kafka's own command-line tools administer the broker and read its segment files.

The tests need Java and the tools' jars: ``scripts/kafka_jars.sh DIR`` downloads them, and the
variable ``CORDWOOD_KAFKA_JARS`` names their directory. Without them the tests are skipped with a
reason.
"""

from __future__ import annotations

import shutil
import subprocess

import pytest

from cordwood.testing import Broker
from support.kafka_clients import Confluent, Sent, create_topic
from support.kafka_jars import FETCH, JARS, has

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
DUMP = "kafka.tools.DumpLogSegments"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"

pytestmark = pytest.mark.skipif(
    not (has("kafka-tools-*") and shutil.which("java")),
    reason=f"missing tool: Kafka's Java tools {FETCH}",
)


@pytest.fixture(scope="module")
def broker():
    """One broker for all tests of this module."""
    with Broker(durability="os", group_initial_rebalance_delay_ms=0) as running:
        yield running


def java(tool: str, *arguments: str, given: str = "") -> str:
    """Run a tool until it exits successfully and return its standard output."""
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*", tool]
    done = subprocess.run(
        [*command, *arguments], input=given, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Exception" not in done.stdout + done.stderr, done.stdout + done.stderr
    return done.stdout


def test_topics_are_created_described_and_deleted(broker):
    """The kafka-topics tool creates, describes, grows and deletes a topic."""
    at = ("--bootstrap-server", broker.kafka)
    java(TOPICS, *at, "--create", "--topic", "made", "--partitions", "3")
    described = java(TOPICS, *at, "--describe", "--topic", "made")
    assert "PartitionCount: 3" in described
    assert "Leader: 1" in described
    java(TOPICS, *at, "--alter", "--topic", "made", "--partitions", "5")
    assert "PartitionCount: 5" in java(TOPICS, *at, "--describe", "--topic", "made")
    java(TOPICS, *at, "--delete", "--topic", "made")
    assert "made" not in java(TOPICS, *at, "--list").split()


def test_settings_are_altered_and_described(broker):
    """The kafka-configs tool sets, describes and removes a topic's setting."""
    create_topic(broker.kafka, "set")
    at = ("--bootstrap-server", broker.kafka, "--entity-type", "topics", "--entity-name", "set")
    java(CONFIGS, *at, "--alter", "--add-config", "retention.ms=12345678")
    assert "retention.ms=12345678" in java(CONFIGS, *at, "--describe")
    java(CONFIGS, *at, "--alter", "--delete-config", "retention.ms")
    assert "12345678" not in java(CONFIGS, *at, "--describe")


def test_the_broker_is_changed_while_it_runs(broker):
    """The kafka-configs tool sets, describes and removes settings of one broker and of all."""
    at = ("--bootstrap-server", broker.kafka, "--entity-type", "brokers")
    this = (*at, "--entity-name", "1")
    java(CONFIGS, *this, "--alter", "--add-config", "num.partitions=3,log.retention.ms=86400000")
    described = java(CONFIGS, *this, "--describe")
    assert "DYNAMIC_BROKER_CONFIG:num.partitions=3" in described
    assert "DYNAMIC_BROKER_CONFIG:log.retention.ms=86400000" in described
    java(CONFIGS, *this, "--alter", "--delete-config", "num.partitions,log.retention.ms")
    assert "num.partitions=3" not in java(CONFIGS, *this, "--describe")
    everywhere = (*at, "--entity-default")
    java(CONFIGS, *everywhere, "--alter", "--add-config", "scrub.interval.ms=123456789")
    assert "scrub.interval.ms=123456789" in java(CONFIGS, *everywhere, "--describe")
    java(CONFIGS, *everywhere, "--alter", "--delete-config", "scrub.interval.ms")


def test_log_levels_are_changed_while_the_broker_runs(broker):
    """The kafka-configs tool sets and describes the level of a logger."""
    at = ("--bootstrap-server", broker.kafka, "--entity-type", "broker-loggers")
    this = (*at, "--entity-name", "1")
    java(CONFIGS, *this, "--alter", "--add-config", "cordwood.log=ERROR")
    assert "cordwood.log=ERROR" in java(CONFIGS, *this, "--describe")
    java(CONFIGS, *this, "--alter", "--delete-config", "cordwood.log")
    assert "cordwood.log=ERROR" not in java(CONFIGS, *this, "--describe")


@pytest.mark.skipif(
    not has("kafka-tools-4*"), reason=f"missing tool: Kafka 4's Java tools, 3 has no groups {FETCH}"
)
def test_a_group_has_its_own_timeouts(broker):
    """The kafka-configs tool of Kafka 4 sets, describes and removes the timeout of one group."""
    at = ("--bootstrap-server", broker.kafka, "--entity-type", "groups", "--entity-name", "g")
    java(CONFIGS, *at, "--alter", "--add-config", "consumer.heartbeat.interval.ms=7000")
    assert "consumer.heartbeat.interval.ms=7000" in java(CONFIGS, *at, "--describe")
    java(CONFIGS, *at, "--alter", "--delete-config", "consumer.heartbeat.interval.ms")
    assert "=7000" not in java(CONFIGS, *at, "--describe")


def test_the_quorum_has_one_voter_and_no_transaction_is_open(broker):
    """The tools for the metadata quorum and for transactions get a complete answer."""
    at = ("--bootstrap-server", broker.kafka)
    status = java(QUORUM, *at, "describe", "--status")
    assert "LeaderId:               1" in status
    assert "CurrentObservers:       []" in status
    assert java(TRANSACTIONS, *at, "list").split()[0] == "TransactionalId"


def test_console_tools_write_read_and_reset(broker):
    """Kafka's console tools produce and consume; its group tools show lag and reset offsets."""
    at = ("--bootstrap-server", broker.kafka)
    create_topic(broker.kafka, "console")
    lines = [f"k{number}:v{number}" for number in range(100)]
    keyed = ("--property", "parse.key=true", "--property", "key.separator=:")
    java("kafka.tools.ConsoleProducer", *at, "--topic", "console", *keyed, given="\n".join(lines))
    shown = ("--property", "print.key=true", "--property", "key.separator=:")
    consume = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    from_start = ("--from-beginning", "--max-messages", "100", "--group", "readers")
    printed = java(consume, *at, "--topic", "console", *from_start, *shown)
    assert printed.split() == lines
    described = java(GROUPS, *at, "--describe", "--group", "readers")
    assert described.split()[described.split().index("console") + 1 :][:4] == [
        "0",
        "100",
        "100",
        "0",
    ]
    java(GROUPS, *at, "--group", "readers", "--reset-offsets", "--to-offset", "40", "--topic",
         "console", "--execute")  # fmt: skip
    described = java(GROUPS, *at, "--describe", "--group", "readers")
    assert described.split()[described.split().index("console") + 1 :][:4] == [
        "0",
        "40",
        "100",
        "60",
    ]
    ends = java("org.apache.kafka.tools.GetOffsetShell", *at, "--topic", "console")
    assert "console:0:100" in ends


def test_verifiable_tools_agree(broker):
    """Kafka's VerifiableProducer and VerifiableConsumer transfer 5,000 records."""
    at = ("--bootstrap-server", broker.kafka, "--topic", "verified", "--max-messages", "5000")
    produced = java("org.apache.kafka.tools.VerifiableProducer", *at, "--acks", "-1")
    assert '"sent":5000,"acked":5000' in produced
    consume = "org.apache.kafka.tools.VerifiableConsumer"
    consumed = java(consume, *at, "--group-id", "verifiers", "--reset-policy", "earliest")
    assert '"partition":0,"offset":5000' in consumed


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_dump_log_reads_our_segments_and_finds_the_indexes_sane(tmp_path, codec):
    """The kafka-dump-log tool reads every record of all segments and accepts both indexes."""
    records = [Sent(b"value %d " % number + bytes(200), b"key") for number in range(2000)]
    with Broker(tmp_path / "data", durability="os") as broker:
        create_topic(broker.kafka, "dumped", segment_bytes=65_536)
        for start in range(0, 2000, 100):
            Confluent().send(broker.kafka, "dumped", records[start : start + 100], codec=codec)
    logs = sorted((tmp_path / "data" / "dumped-0").glob("*.log"))
    indexes = [log.with_suffix(suffix) for log in logs for suffix in (".index", ".timeindex")]
    printed = java(DUMP, "--deep-iteration", "--files", ",".join(map(str, logs)))
    dumped = [int(line.split()[2]) for line in printed.splitlines() if line.startswith("| offset:")]
    assert dumped == list(range(2000))
    assert "isvalid: false" not in printed
    checked = java(DUMP, "--index-sanity-check", "--files", ",".join(map(str, indexes)))
    assert checked.count("passed sanity check") + checked.count("is empty") == len(indexes)
    found = java(DUMP, "--verify-index-only", "--files", ",".join(map(str, indexes)))
    assert "Found timestamp mismatch" not in found
    assert "Found out of order timestamp" not in found
    assert "Index position" not in found
