"""What the router reads and where it stages its output; needs no Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cordwood.decide.routing import router_query
from cordwood.pipeline.runtime.staging import StagingTarget
from cordwood.pipeline.runtime.topic_reads import read_options
from cordwood.pipeline.source.options import SourceOptions, parse_options

FORMAT: Final = "cordwood-route"
RECORDS_MAX: Final = 1_000_000  # per micro-batch: bounds staged data and work repeated on failure
TASK_RECORDS_MAX: Final = 200_000  # so that several cores share a large micro-batch


@dataclass(frozen=True, slots=True)
class RouteJob:
    """What to route, and where to stage it; small and picklable."""

    topic: str
    dead_letter_topic: str
    staging: StagingTarget
    topic_id: str  # id of the routed topic: if it is created again, the cursor is a different one
    records_max: int = RECORDS_MAX
    parallelism: int | None = None  # how many tasks the executors run at the same time

    @property
    def query(self) -> str:
        """Name of the query in deliveries."""
        return router_query(self.topic)

    def source_options(self) -> SourceOptions:
        """Return options that read segment files if reachable, else use Kafka.

        Records that are no longer in the log do not fail the query.
        """
        more = {"parallelism": str(self.parallelism)} if self.parallelism else {}
        options = read_options(
            self.staging,
            self.topic,
            startingOffsets="earliest",
            failOnDataLoss="false",
            maxOffsetsPerTrigger=str(self.records_max),
            maxRecordsPerPartition=str(TASK_RECORDS_MAX),
            **more,
        )
        return parse_options(options, streaming=True)
