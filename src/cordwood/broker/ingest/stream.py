"""The lines of one ingress connection on their way to the log."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from cordwood.batch.lines import LineProducer
from cordwood.broker.ingest.flow_control import FlowControl, IngressSocket
from cordwood.broker.session import Session
from cordwood.log.write.partition import Partition


@dataclass(slots=True, eq=False)
class LineStream:
    """The state of one ingress connection."""

    session: Session
    partition: Partition
    socket: IngressSocket
    flow: FlowControl
    on_end: Callable[[LineStream], None]  # called when nothing is pending on a closed connection
    name: str | None = None
    producer: LineProducer | None = None
    pending: int = 0  # blocks and other work that have not ended
    is_gathered: bool = False  # a block of its lines waits to be encoded
    encoding_tasks: int = 0  # its tasks running on the encoding thread
    failed: bool = False
    is_closed: bool = False  # its connection is closed
    acked_n: int | None = None  # to acknowledge with the next commit
    rejected: deque[tuple[bytes, str]] = field(default_factory=deque)  # bad lines not yet written
    drained: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Nothing is pending yet."""
        self.drained.set()

    def begin(self) -> None:
        """Count work that ``end`` ends."""
        self.pending += 1
        self.drained.clear()

    def end(self) -> None:
        """Work has ended, whether it succeeded or not."""
        self.pending -= 1
        if self.pending == 0:
            self.drained.set()
            if self.is_closed:
                self.on_end(self)

    def close(self) -> None:
        """The connection is closed; its pending work goes on."""
        self.is_closed = True
        self.flow.close()
        if self.pending == 0:
            self.on_end(self)

    def advance(self, last_n: int | None) -> None:
        """Record the last encoded ``n``; lines up to it are stored or on their way to the log."""
        if self.producer is not None:
            producer_id, epoch, _ = self.producer
            self.producer = LineProducer(producer_id, epoch, last_n)

    def send_ack(self) -> None:
        """Acknowledge all blocks of a commit with one line: the newest n covers the others."""
        if self.acked_n is not None:
            self.socket.send(b"ACK %d" % self.acked_n)
            self.acked_n = None
