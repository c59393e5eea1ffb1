"""Source, sink, jobs and the embedded pipeline with a broker whose listeners all use TLS."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cordwood.client import Producer
from cordwood.client.http import HttpClient
from cordwood.client.kafka import KafkaClient
from cordwood.lab.scenarios.stage import SPARK_S, Child, wait_until
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi
from cordwood.pipeline.runtime.tls_options import encode_tls
from cordwood.pipeline.table import TableRequest, build_table
from cordwood.protocol.api.readers import ListReaders
from cordwood.spark import topic
from cordwood.testing import Broker
from support.tls import client_tls, make_certificates, tls_broker, tls_settings

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of the broker's CA."""
    return make_certificates(tmp_path_factory.mktemp("certs"))


@pytest.fixture(scope="module")
def mutual(certs: Path) -> Iterator[Broker]:
    """A broker with TLS only that requires client certificates."""
    with tls_broker(certs, durability="os") as running:
        yield running


def options(broker: Broker, **tls: str) -> dict[str, str]:
    """Kafka's options of a client with TLS."""
    where = {"kafka.bootstrap.servers": broker.address("kafka_tls")}
    return {**where, "kafka.security.protocol": "SSL", **tls}


def test_sink_source_and_a_job_work_over_mutual_tls(
    spark: Any, mutual: Broker, certs: Path, tmp_path: Path
):
    """Rows written with PEM text are read with PEM files, and a table is made of them."""
    text = options(mutual, **encode_tls(client_tls(certs).inlined()))
    frame = spark.sql("select 'k' key, '1' value union all select 'k', '2'").coalesce(1)
    frame.write.format("cordwood").options(**text, topic="users").mode("append").save()

    both = tmp_path / "both.pem"
    both.write_bytes((certs / "client.pem").read_bytes() + (certs / "client.key").read_bytes())
    stores = {
        "kafka.ssl.truststore.location": str(certs / "ca.pem"),
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.keystore.location": str(both),
    }
    reader = spark.read.format("cordwood").options(**options(mutual, **stores))
    rows = reader.option("subscribe", "users").load().select("key", "value").collect()
    assert [tuple(row) for row in rows] == [(b"k", b"1"), (b"k", b"2")]

    frame = topic(spark, "users", broker=mutual.address("kafka_tls"), tls=client_tls(certs))
    assert frame.count() == 2

    where = BrokerAddress(mutual.address("kafka_tls"), tls=client_tls(certs))
    with closing(BrokerApi(where)) as api:
        built = build_table(spark, api, TableRequest(topic="users", out=tmp_path / "t"))
    assert (built.rows, built.read) == (1, 2)


def test_source_without_tls_is_told_which_option_to_set(spark: Any, mutual: Broker):
    """The query fails at once, in one sentence that names Spark's option."""
    reader = spark.read.format("cordwood").option("subscribe", "users")
    with pytest.raises(Exception, match=r"kafka\.security\.protocol=SSL"):
        reader.option("kafka.bootstrap.servers", mutual.address("kafka_tls")).load().collect()


@pytest.mark.slow
def test_embedded_pipeline_routes_where_every_listener_requires_a_certificate(
    certs: Path, tmp_path: Path
):
    """The supervised child connects with the broker's own files; none is on its command line."""
    settings = tls_settings(certs, mutual=True)
    dotted = {name.replace("_", "."): value for name, value in settings.items()}
    broker = Child(tmp_path / "data", {"pipeline": "embedded", **dotted})
    tls = client_tls(certs)
    http = HttpClient(f"https://{broker.addresses['http_tls']}", tls=tls)

    def routed() -> int:
        rows = http.call(ListReaders()).readers
        return sum(row.seq for row in rows if row.reader == "route")

    try:
        with Producer(broker.addresses["ingress_tls"], name="p", tls=tls) as producer:
            producer.send_and_confirm([("jobs.x", "1")])
        wait_until(lambda: routed() == 1, "it is routed", SPARK_S)
        with KafkaClient(broker.addresses["kafka_tls"], tls=tls) as client:
            assert "jobs" in {topic.name for topic in client.topics()}
        said = subprocess.run(
            [sys.executable, "-m", "cordwood", "pipeline", "status", "--format", "csv"],
            env={
                **os.environ,
                "CORDWOOD_BROKER": broker.addresses["kafka_tls"],
                "CORDWOOD_TLS_CA": tls.ca,
                "CORDWOOD_TLS_CLIENT_CERT": tls.cert,
                "CORDWOOD_TLS_CLIENT_KEY": tls.key,
            },
            capture_output=True,
            text=True,
            check=True,
        )
        state, pid = said.stdout.splitlines()[1].split(",")[:2]
        assert state == "up"
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert b".pem" not in words
        assert b".key" not in words
    finally:
        broker.kill()
