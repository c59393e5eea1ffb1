"""A broker without the pipeline says that compacted topics are not compacted."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from cordwood.broker.jobs.pipeline_status import PipelineState, PipelineStatus
from cordwood.client.kafka import KafkaClient
from cordwood.config import BrokerConfig
from cordwood.server.service import Service, warn_about_compaction
from cordwood.testing import Broker

OFF = dict.fromkeys(("kafka", "ingress", "control", "http"), "off")


def warnings_in(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if "compaction.missing" in r.getMessage()]


async def test_the_log_says_it_once_for_the_first_compacted_topic(tmp_path, caplog):
    """The warning comes with the first compacted topic, at the start or later, and only once."""
    config = BrokerConfig(data=str(tmp_path / "data"), **OFF)
    service = Service(config)
    await service.start()
    try:
        telling = asyncio.create_task(warn_about_compaction(service.broker, every_s=0.001))
        await service.broker.topics.create("plain", 1, {})
        assert warnings_in(caplog) == []
        await service.broker.topics.create("t", 1, {"cleanup.policy": "compact"})
        await asyncio.wait_for(telling, 30)
        await asyncio.wait_for(warn_about_compaction(service.broker), 30)  # as after a restart
    finally:
        await service.stop()
    output, again = warnings_in(caplog)
    assert output == again
    assert "cordwood pipeline run" in output


def test_topic_describe_says_it_and_how_to_change_it():
    """``topic describe`` of a compacted topic says that nothing compacts it; of others nothing."""
    with Broker() as broker, KafkaClient(broker.kafka) as client:
        client.create_topic("t", 1, {"cleanup.policy": "compact"})
        client.create_topic("plain", 1, {})
        described = {}
        for topic in ("t", "plain"):
            done = subprocess.run(
                [sys.executable, "-m", "cordwood", "topic", "describe", topic],
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
                env={**os.environ, "CORDWOOD_BROKER": broker.kafka},
            )
            described[topic] = done.stderr
    assert "not compacted: this broker runs no pipeline" in described["t"]
    assert "cordwood compact TOPIC --now" in described["t"]
    assert "not compacted" not in described["plain"]


def test_without_spark_the_remedy_is_to_install_it():
    """A pipeline that cannot start gives its own reason; one that starts or runs gives none."""
    status = PipelineStatus(state=PipelineState.MISSING, detail="the pipeline needs Spark: pip")
    assert status.report().not_compacting.endswith(
        "grow without bound: the pipeline needs Spark: pip"
    )
    for state in (PipelineState.STARTING, PipelineState.UP, PipelineState.WAITING):
        assert not PipelineStatus(state=state).why_not_compacting()
