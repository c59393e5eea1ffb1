"""Which ingress connection holds which producer name.

One connection at a time holds a name. A second one takes it over once all pending work of the first
has ended, so that no line is stored twice between them.
"""

from __future__ import annotations

from cordwood.batch.lines import LineProducer
from cordwood.broker.ingest.stream import LineStream
from cordwood.broker.topics import TopicService
from cordwood.errors import StaleProducer
from cordwood.protocol.line.replies import Welcome, encode_error
from cordwood.protocol.line.serial import NOTHING_YET


class ProducerNames:
    """The names in use."""

    def __init__(self, topics: TopicService) -> None:
        self._topics = topics
        self.holders: dict[str, LineStream] = {}

    async def take(self, stream: LineStream, name: str, epoch: int | None) -> Welcome:
        """Take a name; returns its epoch and its last durable ``n``."""
        if stream.name is not None:
            raise StaleProducer(f"this connection already identified itself as {stream.name}")
        stream.name = name
        while (holder := self.holders.get(name)) is not None:
            await self._fence(holder, name)
        self.holders[name] = stream  # from here on, another HELLO has to fence this stream
        identity = await self._topics.line_producer(name, epoch)
        if stream.failed:
            raise _fenced(name)
        last = stream.partition.producers.last_sequence(identity.producer_id, identity.epoch)
        stream.producer = LineProducer(identity.producer_id, identity.epoch, last)
        stream.flow.may_drop = False  # it was promised an answer
        return Welcome(name, identity.epoch, last or NOTHING_YET)

    async def _fence(self, holder: LineStream, name: str) -> None:
        """End the stream that holds the name, and wait for its pending work."""
        if not holder.failed:
            holder.failed = True
            holder.socket.send(encode_error(_fenced(name)))
            holder.socket.close()
        await holder.drained.wait()
        self.release(holder)

    def release(self, stream: LineStream) -> None:
        """Free the name of a stream that has no pending lines; a successor waits for those."""
        if stream.name is not None and self.holders.get(stream.name) is stream:
            del self.holders[stream.name]


def _fenced(name: str) -> StaleProducer:
    return StaleProducer(f"another connection has sent HELLO {name}")
