"""What the group and the transaction coordinator share: they carry out instructions.

A request becomes an event with a token. The state machine answers with instructions, which are
carried out in order for each key. The request is answered when its ``Reply`` is reached, or refused
with a retriable error when the coordinator stops.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from cordwood.broker.kafka.keyed_queue import KeyedQueue, Timers
from cordwood.codes import Code
from cordwood.decide.instructions import Forget, Reply, SetTimer, Tick

AWAY: Final = Code.COORDINATOR_NOT_AVAILABLE  # every client retries after this code

Event = TypeVar("Event")
Instruction = TypeVar("Instruction")
Token = asyncio.Future[Any]  # resolves with the type of answer that its event has


class Coordinator(ABC, Generic[Event, Instruction]):
    """One state machine per key, a group or a transactional id. Used only on the event loop."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._keyed_queue: KeyedQueue[Instruction] = KeyedQueue(self._carry_out)
        self.timers = Timers(now_ms, lambda key: self._handle(key, Tick()))
        self._asked: dict[Token, tuple[str, Event]] = {}
        self._stopping = False

    @abstractmethod
    def _decide(self, key: str, event: Event | Tick) -> Sequence[Instruction]:
        """Pass an event to the state machine of its key."""

    @abstractmethod
    async def _carry_out(self, key: str, instructions: Sequence[Instruction]) -> None:
        """Carry out one list of instructions."""

    @abstractmethod
    def _refusal(self, event: Event) -> Any:
        """Return the answer that refuses an event with ``AWAY``."""

    async def ask(self, key: str, event: Callable[[Token], Event]) -> Any:
        """Handle the event made with a token; returns its answer once the outcome is durable."""
        token: Token = asyncio.get_running_loop().create_future()
        self._asked[token] = key, event(token)
        if self._stopping:
            self._refuse(token)
        else:
            self._handle(key, self._asked[token][1])
        return await token

    def drain(self) -> None:
        """Refuse waiting and new requests with a retriable error, from now on."""
        self._stopping = True
        self.timers.cancel_all()
        self._refuse_all()

    async def idle(self) -> None:
        """Wait until no instruction is in progress."""
        await self._keyed_queue.idle()

    def _handle(self, key: str, event: Event | Tick) -> None:
        self._keyed_queue.put(key, self._decide(key, event))

    def _apply(self, key: str, instruction: Reply | SetTimer | Forget) -> None:
        """Carry out an instruction that writes nothing."""
        match instruction:
            case Reply():
                assert isinstance(instruction.token, asyncio.Future)
                self._end(instruction.token, instruction.answer)
            case SetTimer():
                if not self._stopping:
                    self.timers.set(key, instruction.at_ms)
            case Forget():
                self.timers.cancel(key)

    def _refuse_all(self, key: str | None = None) -> None:
        """Refuse the waiting requests, all or those of one key."""
        for token, (asked_key, _) in list(self._asked.items()):
            if key in {None, asked_key}:
                self._refuse(token)

    def _refuse(self, token: Token) -> None:
        if token in self._asked:
            self._end(token, self._refusal(self._asked[token][1]))

    def _end(self, token: Token, answer: Any) -> None:
        """Answer a token once; a refused token may get a second answer, which is ignored."""
        if self._asked.pop(token, None) is not None and not token.done():
            token.set_result(answer)
