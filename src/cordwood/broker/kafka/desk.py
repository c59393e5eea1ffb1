"""The table from API to handler, and the one way in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from cordwood.broker.kafka.caller import Caller
from cordwood.config import MIB
from cordwood.log.writer import Writer
from cordwood.wire.kafka.frames import Request, decode_request
from cordwood.wire.kafka.schema import API_BY_KEY

# A coroutine function, or for what happens all day a function that returns a future: one that is
# done already, if it can.
Handler = Callable[[Any, int, Caller], Awaitable[Any]]

WAITING_BYTES_MAX: Final = 64 * MIB  # batches waiting for the writer before Produce is held up


class KafkaDesk:
    """Answers decoded requests; every request of every connection comes through ``answer``."""

    def __init__(self, writer: Writer, handlers: dict[str, Handler]) -> None:
        """``handlers`` by Kafka's name of the API, one for each that ``schema`` serves."""
        missing = {api.name for api in API_BY_KEY.values()} ^ set(handlers)
        assert not missing, f"served but not handled, or the reverse: {sorted(missing)}"
        self._writer = writer
        self._handlers = {key: handlers[api.name] for key, api in API_BY_KEY.items()}
        self._room = asyncio.Event()

    @property
    def has_room(self) -> bool:
        """Whether the writer takes another Produce."""
        return self._writer.waiting_bytes <= WAITING_BYTES_MAX

    async def room(self) -> None:
        """Until it does."""
        while not self.has_room:
            self._room.clear()
            await self._room.wait()

    def on_commit(self) -> None:
        """A commit took what waited."""
        self._room.set()

    def answer(self, request: Request, caller: Caller) -> Awaitable[Any]:
        """The typed reply, or None where the protocol wants none; raises ``ProtocolError``.

        Produce's batches are with the writer, in order, when this returns.
        """
        message = decode_request(request)
        return self._handlers[request.api_key](message, request.api_version, caller)
