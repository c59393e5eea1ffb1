"""Scenario: dead letters are repaired and replayed exactly once; the originals stay."""

from __future__ import annotations

import json
from typing import Any

from cordwood.client import Client, Producer
from cordwood.lab.scenarios.stage import Child, ScenarioRun, read_all

KNOWN = 70
DEAD = 30


def dead_letter(stage: ScenarioRun) -> None:
    """70 known and 30 ``dead.letter_*`` keys, replayed as ``test.recovered_*``, twice."""
    child = stage.serve(pipeline="embedded")
    control, kafka = child.addresses["control"], child.addresses["kafka"]
    sent = [(f"test.probe_{i}", f"known {i}") for i in range(KNOWN)]
    sent += [(f"dead.letter_{i}", f"letter {i}") for i in range(DEAD)]
    with Client(control) as client, Producer(child.addresses["ingress"], name="sender") as producer:
        producer.send_and_confirm(sent)
        _wait(stage, child, {"test": KNOWN, "dead": DEAD})
        dead = read_all(control, "dead", DEAD)
        first = _replay(stage, kafka)
        stage.check(first == DEAD, "every dead letter was sent back", replayed=first)
        _wait(stage, child, {"append": KNOWN + 2 * DEAD, "test": KNOWN + DEAD})
        keys = [line.routing_key for line in read_all(control, "test", KNOWN + DEAD)]
        recovered = [f"test.recovered_{i}" for i in range(DEAD)]
        stage.check(keys[KNOWN:] == recovered, "recovered in order, under their new keys")
        second = _replay(stage, kafka)
        stage.check(second == 0, "run twice, nothing is sent twice", replayed=second)
        producer.send_and_confirm([("mark.end", "behind everything")])
        _wait(stage, child, {"mark": 1})  # the router has processed all earlier records
        ends = {topic: client.get_ack(topic) for topic in ("test", "dead")}
        stage.check(ends == {"test": KNOWN + DEAD, "dead": DEAD}, "test grew by 100", **ends)
        stage.check(read_all(control, "dead", DEAD) == dead, "the dead letters are untouched")


def _replay(stage: ScenarioRun, kafka: str) -> int:
    """Replay topic ``dead`` to the ingress topic under new keys; returns the number sent."""
    done = stage.run_command(
        "dlq", "replay", "--from", "dead",
        "--set-key", "concat('test.recovered_', split_part(key_text, '_', 2))",
        at=kafka,
    )  # fmt: skip
    return int(json.loads(done.stdout)[0]["replayed"])


def _wait(stage: ScenarioRun, broker: Child, ends: dict[str, int]) -> None:
    with Client(broker.addresses["control"]) as client:

        def arrived() -> bool:
            known = set(ends) & set(_topics(client))
            return known == set(ends) and all(client.get_ack(name) >= ends[name] for name in ends)

        stage.wait_for_spark(broker, arrived, f"topics hold {ends}")


def _topics(client: Client) -> list[str]:
    marks: Any = client.metrics()["cordwood_high_watermark"]
    return [mark["topic"] for mark in marks]
