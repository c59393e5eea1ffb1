"""Bad lines are part of their connection's work until they are durable."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest

from cordwood.broker.ingest.dead_letters import LINES_PER_TURN, DeadLetterWriter
from cordwood.broker.ingest.stream import LineStream
from cordwood.errors import UnavailableError


class HeldAppends:
    """Appends that are durable, or fail, when the test says so."""

    def __init__(self, expected: int) -> None:
        self.futures: list[asyncio.Future[object]] = []
        self.all_sent = asyncio.Event()
        self._expected = expected

    def append_values(self, _partition: object, _values: object) -> asyncio.Future[object]:
        self.futures.append(asyncio.get_running_loop().create_future())
        if len(self.futures) == self._expected:
            self.all_sent.set()
        return self.futures[-1]


def a_stream() -> LineStream:
    return LineStream(Mock(peer="127.0.0.1:1"), Mock(), Mock(), Mock(), on_end=Mock())


@pytest.mark.parametrize("error", [None, UnavailableError("the disk is gone")])
@pytest.mark.parametrize("count", [1, LINES_PER_TURN, 3 * LINES_PER_TURN])
async def test_connection_waits_until_its_dead_letters_are_durable(count, error):
    """A stream is drained when the last append of its bad lines has ended, not when it is sent."""
    appends, stream = HeldAppends(expected=-(-count // LINES_PER_TURN)), a_stream()
    writer = DeadLetterWriter(Mock(), appends, Mock(), "dead_letter")
    writer.write(stream, [(b"bad", "half_line")] * count)
    await asyncio.wait_for(appends.all_sent.wait(), 30)
    for future in appends.futures:
        assert not stream.drained.is_set()
        future.set_exception(error) if error else future.set_result(None)
    await asyncio.wait_for(stream.drained.wait(), 30)
    assert stream.pending == 0
