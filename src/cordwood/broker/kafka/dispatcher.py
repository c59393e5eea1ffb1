"""The table from API to handler, and the one way in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from cordwood.broker.kafka.session import Session
from cordwood.broker.produce import ProduceService
from cordwood.config import MIB
from cordwood.errors import TooManyElements
from cordwood.log.write.writer import Writer
from cordwood.protocol.kafka.frames import Request, decode_request
from cordwood.protocol.kafka.schema import API_BY_KEY

# A coroutine function, or for what happens all day a function that returns a future: one that is
# done already, if it can.
Handler = Callable[[Any, int, Session], Awaitable[Any]]

WAITING_BYTES_MAX: Final = 64 * MIB  # batches waiting for the writer before Produce is held up


LOOP_ELEMENTS: Final = 2_000  # decoded on the loop in a millisecond or two; more elsewhere
LARGE_REQUESTS_MAX: Final = 8  # of those with more, under way at a time: each takes megabytes
_PARKED: Final = {11, 13}  # JoinGroup waits for others, LeaveGroup is one step: never so large


class RequestDispatcher:
    """Answers decoded requests; every request of every connection comes through ``answer``."""

    def __init__(
        self,
        writer: Writer,
        produce: ProduceService,
        handlers: dict[str, Handler],
        elements_max: int = 50_000,
    ) -> None:
        """``handlers`` by Kafka's name of the API, one for each that ``schema`` serves."""
        missing = {api.name for api in API_BY_KEY.values()} ^ set(handlers)
        assert not missing, f"served but not handled, or the reverse: {sorted(missing)}"
        self._writer = writer
        self._produce = produce
        produce.on_checked = self.on_commit
        self._handlers = {key: handlers[api.name] for key, api in API_BY_KEY.items()}
        self._room = asyncio.Event()
        self._elements_max = elements_max
        self._large = asyncio.Semaphore(LARGE_REQUESTS_MAX)

    @property
    def has_capacity(self) -> bool:
        """Whether the writer takes another Produce."""
        waiting_bytes = self._writer.waiting_bytes + self._produce.checking_bytes
        return waiting_bytes <= WAITING_BYTES_MAX

    async def room(self) -> None:
        """Until it does."""
        while not self.has_capacity:
            self._room.clear()
            await self._room.wait()

    def on_commit(self) -> None:
        """A commit took what waited, or a check refused it."""
        self._room.set()

    def answer(self, request: Request, session: Session) -> Awaitable[Any]:
        """The typed reply, or None where the protocol wants none; raises ``ProtocolError``.

        Produce's batches are with the writer, or behind it in order, when this returns a future;
        a coroutine or task is still handing them over.
        """
        try:
            message = decode_request(request, LOOP_ELEMENTS)
        except TooManyElements:
            return self._answer_large(request, session)
        return self._handlers[request.api_key](message, request.api_version, session)

    async def _answer_large(self, request: Request, session: Session) -> Any:
        """Decode beside the loop; few such requests are in memory at a time."""
        elements_max = LOOP_ELEMENTS if request.api_key in _PARKED else self._elements_max
        async with self._large:
            loop = asyncio.get_running_loop()
            message = await loop.run_in_executor(None, decode_request, request, elements_max)
            return await self._handlers[request.api_key](message, request.api_version, session)
