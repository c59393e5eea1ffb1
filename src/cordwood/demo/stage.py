"""What both stories stand on: a broker, a Spark session, a narrator, and a verdict a check."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import IO, Any, Protocol, Self

from cordwood.client import Client
from cordwood.demo.picture import Moment
from cordwood.pipeline.broker import BrokerApi, Where
from cordwood.testing import Broker


class Bar(Protocol):
    """How far a step has come, for whoever watches."""

    def reach(self, done: int) -> None:
        """So much is done in all."""


class _Unwatched:
    def reach(self, done: int) -> None:
        del done


Watch = Callable[[str, int | None], AbstractContextManager[Bar]]  # what is done, and how much of it


class Stage:
    """One run of the demo. ``watch`` shows the progress of its long steps."""

    def __init__(
        self,
        directory: Path,
        out: IO[str] | None = None,
        watch: Watch = lambda _what, _total: nullcontext(_Unwatched()),
    ) -> None:
        self.directory = directory
        self.checks: list[tuple[str, bool]] = []
        self.moments: list[Moment] = []
        self.watch = watch
        self._out = out or sys.stdout
        self._stack = ExitStack()
        self._steps = 0
        self._freed = 0
        self._archived = 0

    def __enter__(self) -> Self:
        """Start the broker and Spark."""
        from cordwood.spark import session

        started = time.monotonic()
        self.broker = self._stack.enter_context(Broker(self.directory / "data"))
        self.client = self._stack.enter_context(Client(self.broker.control))
        self.where = Where(self.broker.kafka)
        self.api = BrokerApi(self.where)
        self._stack.callback(self.api.close)
        ready = time.monotonic()
        self.tell(f"broker ready in {ready - started:.2f} s at {self.broker.kafka}")
        with self.watch("starting Spark", None):
            self.spark: Any = session("cordwood demo", master="local[2]")
        self._stack.callback(self.spark.stop)
        self.tell(f"Spark {self.spark.version} ready in {time.monotonic() - ready:.1f} s")
        return self

    def __exit__(self, *_: object) -> None:
        """Stop both."""
        self._stack.close()

    # --- narration ------------------------------------------------------------------------

    def title(self, text: str) -> None:
        """A story begins."""
        self._print(f"\n=== {text} ===")

    def step(self, what: str, why: str) -> None:
        """A step begins: what happens and why it matters."""
        self._steps += 1
        self._print(f"\n{self._steps}. {what}\n   {why}")

    def tell(self, text: str) -> None:
        """A fact."""
        self._print(f"   {text}")

    def check(self, what: str, holds: bool) -> None:
        """A promise, and whether it held."""
        self.checks.append((what, holds))
        self._print(f"   {'ok  ' if holds else 'FAIL'} {what}")

    def _print(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    # --- the log's life -------------------------------------------------------------------

    def bytes_of(self, topic: str) -> int:
        """Bytes of a topic's segments now."""
        found = self.api.get("/api/topics", name=topic)["topics"][0]
        return sum(part["size_bytes"] for part in found["partitions"])

    def records_of(self, topic: str) -> int:
        """Records of a topic now, gaps not counted."""
        found = self.api.get("/api/topics", name=topic)["topics"][0]
        return sum(s["records"] for part in found["partitions"] for s in part["segments"])

    def freed(self, count: int) -> None:
        """So many bytes went, by compaction or reclaim."""
        self._freed += count

    def archived(self, count: int) -> None:
        """So many bytes are in bundles now."""
        self._archived += count

    def moment(self, step: str) -> None:
        """Remember where the bytes are."""
        topics = self.api.get("/api/topics")["topics"]
        live = sum(part["size_bytes"] for topic in topics for part in topic["partitions"])
        self.moments.append(Moment(step, live, self._archived, self._freed))

    # --- Spark ----------------------------------------------------------------------------

    def frame(self, topic: str) -> Any:
        """A topic as a DataFrame, fresh."""
        return (
            self.spark.read.format("cordwood")
            .option("kafka.bootstrap.servers", self.broker.kafka)
            .option("subscribe", topic)
            .load()
        )

    def route(self, end: int) -> float:
        """Run the router until it has come to this offset; the seconds it took."""
        from cordwood.pipeline.route import Route, plan_route

        started, start = time.monotonic(), self._routed()
        api = BrokerApi(self.where)  # the query's thread has one of its own
        running = Route(self.spark, plan_route(api, self.where), api)
        try:
            with self.watch("routing", end - start) as bar:
                while (reached := self._routed()) < end:
                    if (error := running.query.exception()) is not None:
                        raise error
                    bar.reach(reached - start)
                    time.sleep(0.02)
        finally:
            running.stop()
            api.close()
        return time.monotonic() - started

    def _routed(self) -> int:
        """How far the router has come on the ingress topic."""
        return self.api.positions("append", "route").get(0, 0)


def latest_rows(stage: Stage, topic: str) -> list[dict[str, Any]]:
    """The newest value of every key that has one, parsed: the table a changelog stands for."""
    newest = stage.spark.sql(
        """
        select cast(newest.value as string) from (
          select max_by(struct(value), offset) as newest from {changes} group by key
        ) where newest.value is not null
        """,
        changes=stage.frame(topic),
    )
    return [json.loads(row[0]) for row in newest.collect()]
