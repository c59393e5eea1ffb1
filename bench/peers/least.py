"""The least that a server in Python can do, as a bound: lines in, a write, an optional sync, ACKs.

Everything received in one event loop iteration is written with one call and synced with one, and
each sender is acknowledged. Lines are not parsed, checked or numbered, and cannot be read back.
What remains is the loop, its sockets and the file: any real server is slower.

    python -m bench.peers.least FILE synced|cached
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import cast

import uvloop


class Least:
    """The file, and the blocks that wait to be written."""

    def __init__(self, path: str, is_synced: bool) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.is_synced = is_synced
        self.buffer = memoryview(bytearray(1 << 19))
        self.waiting: list[tuple[Sender, bytes]] = []

    def take(self, sender: Sender, block: bytes) -> None:
        self.waiting.append((sender, block))
        if len(self.waiting) == 1:
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        waiting, self.waiting = self.waiting, []
        data = memoryview(b"".join([block for _, block in waiting]))
        while data:
            data = data[os.write(self.file, data) :]
        if self.is_synced:
            os.fdatasync(self.file)
        for sender, block in waiting:
            sender.tell(block)


class Sender(asyncio.BufferedProtocol):
    """One connection: a HELLO, then lines."""

    def __init__(self, least: Least) -> None:
        self._least = least
        self._lines = 0
        self._is_named = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's, which is no subclass

    def get_buffer(self, _: int) -> memoryview:
        return self._least.buffer

    def buffer_updated(self, size: int) -> None:
        block = bytes(self._least.buffer[:size])
        if self._is_named:
            self._least.take(self, block)
        else:
            self._is_named = True
            self._transport.write(b"OK 0\n")

    def tell(self, block: bytes) -> None:
        self._lines += block.count(b"\n")
        self._transport.write(b"ACK %d\n" % self._lines)


async def serve(path: str, is_synced: bool) -> None:
    least = Least(path, is_synced)
    server = await asyncio.get_running_loop().create_server(lambda: Sender(least), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], sys.argv[2] == "synced"))
