"""The environment of both stories: broker, Spark session, printed narration, recorded checks."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import IO, Any, Final, Protocol, Self

from cordwood.client import Client
from cordwood.lab.demo.picture import Moment
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi
from cordwood.protocol.api.topics import ListTopics
from cordwood.testing import Broker

ROUTED_S: Final = 0.1  # between two polls of the router's cursor


class StepProgress(Protocol):
    """Receives the progress of a step, to display it."""

    def reach(self, done: int) -> None:
        """Set the total amount done so far."""


class _Unwatched:
    def reach(self, done: int) -> None:
        del done


Watch = Callable[
    [str, int | None], AbstractContextManager[StepProgress]
]  # name of the step and its total amount, if known


class DemoRun:
    """One run of the demo, on a Spark session. ``watch`` shows the progress of its long steps."""

    def __init__(
        self,
        directory: Path,
        spark: Any,
        out: IO[str] | None = None,
        watch: Watch = lambda _what, _total: nullcontext(_Unwatched()),
    ) -> None:
        self.directory = directory
        self.spark = spark
        self.checks: list[tuple[str, bool]] = []
        self.moments: list[Moment] = []
        self.watch = watch
        self._out = out or sys.stdout
        self._stack = ExitStack()
        self._steps = 0
        self._started = time.monotonic()
        self._archived = self._compacted = self._reclaimed = 0

    def __enter__(self) -> Self:
        """Start the broker and create its ingress and dead-letter topics."""
        started = time.monotonic()
        self.broker = self._stack.enter_context(Broker(self.directory / "data"))
        self.client = self._stack.enter_context(Client(self.broker.control))
        self.where = BrokerAddress(self.broker.kafka)
        self.api = BrokerApi(self.where)
        self._stack.callback(self.api.close)
        seconds = time.monotonic() - started
        self.tell(f"Spark {self.spark.version}; broker at {self.broker.kafka} in {seconds:.2f} s")
        self.client.register("append")
        self.client.register("dead_letter")
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the broker."""
        self._stack.close()

    # --- output and checks ----------------------------------------------------------------

    def title(self, text: str) -> None:
        """Print the title of a story."""
        self._print(f"\n=== {text} ===")

    def step(self, what: str, why: str) -> None:
        """Print the heading of a step: what happens and why it matters."""
        self._steps += 1
        self._print(f"\n{self._steps}. {what}\n   {why}")

    def tell(self, text: str) -> None:
        """Print a fact."""
        self._print(f"   {text}")

    def check(self, what: str, holds: bool) -> None:
        """Record and print whether a claim holds."""
        self.checks.append((what, holds))
        self._print(f"   {'ok  ' if holds else 'FAIL'} {what}")

    def _print(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    # --- size of the log ------------------------------------------------------------------

    def bytes_of(self, topic: str) -> int:
        """The current size of a topic's segments in bytes."""
        return sum(part.size_bytes for part in self.api.topic(topic).partitions)

    def segments_of(self, topic: str) -> int:
        """The current number of a topic's segments that hold records."""
        partitions = self.api.topic(topic).partitions
        return sum(segment.records > 0 for part in partitions for segment in part.segments)

    def records_of(self, topic: str) -> int:
        """The current number of a topic's records, without gaps."""
        partitions = self.api.topic(topic).partitions
        return sum(segment.records for part in partitions for segment in part.segments)

    def compacted(self, count: int) -> None:
        """Add to the bytes removed by compaction."""
        self._compacted += count

    def reclaimed(self, count: int) -> None:
        """Add to the bytes removed by RECLAIM."""
        self._reclaimed += count

    def archived(self, count: int) -> None:
        """Add to the bytes in archive bundles."""
        self._archived += count

    def moment(self, step: str) -> None:
        """Record the size of the log after a step, for the picture."""
        topics = self.api.call(ListTopics()).topics
        segments = [s for topic in topics for part in topic.partitions for s in part.segments]
        active = sum(s.size_bytes for s in segments if s.state == "active")
        cut = sum(s.size_bytes for s in segments) - active
        gone = (self._compacted, self._reclaimed)
        at_s = time.monotonic() - self._started
        self.moments.append(Moment(step, at_s, active, cut, self._archived, *gone))

    # --- Spark ----------------------------------------------------------------------------

    def frame(self, topic: str) -> Any:
        """A new DataFrame of a topic."""
        return (
            self.spark.read.format("cordwood")
            .option("kafka.bootstrap.servers", self.broker.kafka)
            .option("subscribe", topic)
            .load()
        )

    def route(self, end: int) -> float:
        """Run the router until its cursor reaches this offset; returns the seconds it took."""
        from cordwood.pipeline.runtime.failure_reasons import patiently

        started, start = time.monotonic(), self._routed()
        patiently(lambda: self._route_once(start, end))
        return time.monotonic() - started

    def _route_once(self, start: int, end: int) -> None:
        from cordwood.pipeline.route import RouteQuery, plan_route

        api = BrokerApi(self.where)  # for the query's thread
        running = RouteQuery(self.spark, plan_route(api), api)
        try:
            with self.watch("routing", end - start) as bar:
                while (reached := self._routed()) < end:
                    if (error := running.query.exception()) is not None:
                        raise error
                    bar.reach(reached - start)
                    time.sleep(ROUTED_S)
        finally:
            running.stop()
            api.close()

    def _routed(self) -> int:
        """The router's cursor on the ingress topic."""
        return self.api.positions("append", "route").get(0, 0)


def table_rows(stage: DemoRun, topic: str) -> list[dict[str, Any]]:
    """Materialise a changelog as a Parquet table and read its rows back."""
    from cordwood.pipeline.table import TableRequest, build_table

    request = TableRequest(topic=topic, out=stage.directory / "tables" / topic)
    built = build_table(stage.spark, stage.api, request)
    rows = stage.spark.read.parquet(built.place).selectExpr("cast(value as string)")
    return [json.loads(row[0]) for row in rows.collect()]
