"""Scenarios: segments of a running broker are cut, held for readers, reclaimed, rolled over."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cordwood.client import Client, Producer
from cordwood.lab.scenarios.stage import HOUR_MS, ScenarioRun, read_all
from cordwood.testing import Broker

FRAMES = 750
FRAMES_PER_SECOND = 25


def rotation(stage: ScenarioRun) -> None:
    """Cut repeatedly under load while polling ``GET_ACK``: it never decreases and is never 0."""
    child = stage.serve()
    ingress, control = child.addresses["ingress"], child.addresses["control"]
    done = threading.Event()
    with Producer(ingress, name="loader") as producer:
        producer.send_and_confirm([("test.rotate", "first")])
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(_poll_acks, control, done)
            with Client(control) as client:
                cuts = 0
                for round_number in range(40):
                    chunk = [("test.rotate", f"{round_number}-{i}") for i in range(500)]
                    producer.send_and_confirm(chunk)
                    cuts += client.cut("append")
            done.set()
            acks = asked.result()
    stage.check(cuts == 40, "every cut sealed a segment", cuts=cuts)
    stage.check(acks == sorted(acks), "GET_ACK never went back", asked=len(acks))
    stage.check(min(acks) > 0, "GET_ACK was never 0")
    lines = read_all(control, "append", 20_001)
    stage.check([line.seq for line in lines] == list(range(1, 20_002)), "nothing lost by the cuts")


def _poll_acks(control: str, done: threading.Event) -> list[int]:
    acks = []
    with Client(control) as client:
        while not done.is_set():
            acks.append(client.get_ack())
    return acks


def retention(stage: ScenarioRun) -> None:
    """Segments that a lagging reader has not read stay; its ack lets RECLAIM delete them."""
    _retention_black_box(stage)
    _retention_white_box(stage)


def _put_held(client: Client) -> None:
    """Put three sealed segments of ten messages, held for the reader ``slow``."""
    client.register("held", "slow")
    client.configure("held", {"cleanup.policy": "consume"})
    for i in range(30):
        client.put("held", f"message {i}")
        if i % 10 == 9:
            client.cut("held")


def _retention_black_box(stage: ScenarioRun) -> None:
    """Check retention through the listeners only."""
    child = stage.serve("black", monitor_interval_ms=str(HOUR_MS))
    with Client(child.addresses["control"]) as client:
        _put_held(client)
        stage.check(client.reclaim("held") == 0, "nothing goes before the reader has it")
        stage.check(client.status(1, "held").word == "PENDING", "record 1 is pending")
        client.ack("held", "slow", 20)
        stage.check(client.reclaim("held") == 2, "two consumed segments go")
        stage.check(client.status(1, "held").word == "PROCESSED", "record 1 was processed")
        rest = read_all(child.addresses["control"], "held", 10)
        stage.check([line.seq for line in rest] == list(range(21, 31)), "the rest is there")


def _retention_white_box(stage: ScenarioRun) -> None:
    """Check retention in the broker's internal state: the partition and the monitor's plan."""
    with Broker(stage.directory / "white", monitor_interval_ms=HOUR_MS) as broker:
        inside = broker.service.broker
        assert inside is not None
        with Client(broker.control) as client:
            _put_held(client)
            partition = inside.store.topic("held").partition(0)
            plan = inside.monitor.plan(partition)
            held = [hold.readers for hold in plan.holds]
            stage.check(not plan.drops, "the plan drops nothing")
            stage.check(held[:3] == [("slow",)] * 3, "and names who holds each segment")
            client.ack("held", "slow", 30)
            plan = inside.monitor.plan(partition)
            stage.check(len(plan.drops) == 3, "after the ack it drops all three")
            client.reclaim("held")
            stage.check(partition.log_start_offset == 30, "the log starts behind them")
            stage.check(not inside.monitor.plan(partition).drops, "planned again: nothing")


def timecode(frame: int) -> str:
    """SMPTE timecode at 25 frames per second, from 10:00:00:00."""
    seconds, frames = divmod(frame, FRAMES_PER_SECOND)
    minutes, seconds = divmod(seconds, 60)
    return f"10:{minutes:02d}:{seconds:02d}:{frames:02d}"


def smpte(stage: ScenarioRun) -> None:
    """750 frames of timecode, kept through a rotation until the synchronizer has read them."""
    child = stage.serve(monitor_interval_ms=str(HOUR_MS))
    control = child.addresses["control"]
    codes = [timecode(frame) for frame in range(FRAMES)]
    with Client(control) as client, Producer(child.addresses["ingress"], name="deck") as deck:
        deck.send_and_confirm([("smpte.ltc", code) for code in codes[:400]])
        client.register("append", "synchronizer")
        client.configure("append", {"cleanup.policy": "consume"})
        client.cut("append")
        deck.send_and_confirm([("smpte.ltc", code) for code in codes[400:]])
        stage.check(client.reclaim("append") == 0, "the sealed frames wait for the synchronizer")
        read = [
            line.payload.decode() for line in read_all(control, "append", FRAMES) if line.payload
        ]
        stage.check(read == codes, "no frame missing, in order", first=read[0], last=read[-1])
        span = (read[0], read[-1])
        stage.check(span == ("10:00:00:00", "10:00:29:24"), "the span is whole")
        client.ack("append", "synchronizer", FRAMES)
        stage.check(client.reclaim("append") == 1, "read, the sealed segment goes")


def walrus_rollover(stage: ScenarioRun) -> None:
    """60 messages, 10 a segment, concurrent writers, exact counts; restart mid-segment; again."""
    child = stage.serve()
    expected: list[str] = []
    for turn in range(2):
        control = child.addresses["control"]
        with Client(control) as client:
            client.register("logs")
            client.configure("logs", {"segment.entries": "10"})
        expected += _put_concurrently(control, turn, 60)
        with Client(control) as client:
            sealed = _sealed(client)
            stored = client.get_ack("logs")
            # 60 records fill five sealed segments and the active one, which the next append seals.
            full = (len(expected) - 1) // 10
            stage.check(stored == len(expected), "acked = stored", stored=stored)
            stage.check(sealed == [10] * full, "exact counts in every segment", sealed=len(sealed))
            for extra in range(5):
                client.put("logs", f"turn {turn} extra {extra}")
                expected.append(f"turn {turn} extra {extra}")
        child.kill()
        child = stage.serve()
    with Client(child.addresses["control"]) as client:
        got = []
        while (taken := client.get("logs")) is not None:
            got.append((taken.payload or b"").decode())
    stage.check(sorted(got) == sorted(expected), "each message read once", read=len(got))
    stage.check(_in_order_per_writer(got), "in order for every writer")


def _sealed(client: Client) -> list[int]:
    state: dict[str, Any] = client.state("logs")
    return list(state["sealed_segments"].values())


def _put_concurrently(control: str, turn: int, count: int) -> list[str]:
    writers = 4

    def write(writer: int) -> list[str]:
        messages = [f"turn {turn} writer {writer} {i:03d}" for i in range(count // writers)]
        with Client(control) as client:
            for message in messages:
                client.put("logs", message)
        return messages

    with ThreadPoolExecutor(writers) as pool:
        return [message for messages in pool.map(write, range(writers)) for message in messages]


def _in_order_per_writer(got: list[str]) -> bool:
    """Whether the numbers that end each writer's messages are ascending."""
    by_writer: dict[str, list[str]] = {}
    for message in got:
        writer, number = message.rsplit(" ", 1)
        by_writer.setdefault(writer, []).append(number)
    return all(numbers == sorted(numbers) for numbers in by_writer.values())
