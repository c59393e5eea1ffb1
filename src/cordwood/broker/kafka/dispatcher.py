"""Maps each Kafka API to its handler; the single entry point for Kafka requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from cordwood.broker.produce import ProduceService
from cordwood.broker.session import Session
from cordwood.config import MIB
from cordwood.errors import TooManyElements
from cordwood.log.write.writer import Writer
from cordwood.protocol.kafka.frames import Request, decode_request
from cordwood.protocol.kafka.schema import API_BY_KEY

# A coroutine function or, for frequent requests, a plain function that returns a future, which is
# already done if possible.
Handler = Callable[[Any, int, Session], Awaitable[Any]]

WAITING_BYTES_MAX: Final = 64 * MIB  # Produce is paused while more bytes wait for the writer

LOOP_ELEMENTS: Final = 2_000  # decoded on the loop in a millisecond or two; larger ones on a thread
LARGE_REQUESTS_MAX: Final = 8  # concurrent requests with more elements: each takes megabytes
_PARKED: Final = {11, 13}  # refused if large: JoinGroup waits for others, LeaveGroup is one step


class RequestDispatcher:
    """Decodes and answers requests; every request of every connection comes through ``answer``."""

    def __init__(
        self,
        writer: Writer,
        produce: ProduceService,
        handlers: dict[str, Handler],
        elements_max: int = 50_000,
    ) -> None:
        """``handlers`` maps Kafka's API names to handlers, one for each API in ``schema``."""
        missing = {api.name for api in API_BY_KEY.values()} ^ set(handlers)
        assert not missing, f"served but not handled, or the reverse: {sorted(missing)}"
        self._writer = writer
        self._produce = produce
        produce.on_checked = self.on_commit
        self._handlers = {key: handlers[api.name] for key, api in API_BY_KEY.items()}
        self._capacity_freed = asyncio.Event()
        self.elements_max = elements_max
        self.waiting_bytes_max = WAITING_BYTES_MAX
        self._large = asyncio.Semaphore(LARGE_REQUESTS_MAX)

    @property
    def has_capacity(self) -> bool:
        """Whether the writer accepts another Produce."""
        waiting_bytes = self._writer.waiting_bytes + self._produce.checking_bytes
        return waiting_bytes <= self.waiting_bytes_max

    async def wait_for_capacity(self) -> None:
        """Wait until ``has_capacity``."""
        while not self.has_capacity:
            self._capacity_freed.clear()
            await self._capacity_freed.wait()

    def on_commit(self) -> None:
        """Wake waiting requests: a commit or a failed check may have freed capacity."""
        self._capacity_freed.set()

    def answer(self, request: Request, session: Session) -> Awaitable[Any]:
        """Return the typed reply, or None if the protocol has none; raises ``ProtocolError``.

        If this returns a future, Produce's batches are already with the writer or queued in order;
        a coroutine or task is still submitting them.
        """
        try:
            message = decode_request(request, LOOP_ELEMENTS)
        except TooManyElements:
            return self._answer_large(request, session)
        return self._handlers[request.api_key](message, request.api_version, session)

    async def _answer_large(self, request: Request, session: Session) -> Any:
        """Decode on a thread; only a few such requests are in memory at a time."""
        elements_max = LOOP_ELEMENTS if request.api_key in _PARKED else self.elements_max
        async with self._large:
            loop = asyncio.get_running_loop()
            message = await loop.run_in_executor(None, decode_request, request, elements_max)
            return await self._handlers[request.api_key](message, request.api_version, session)
