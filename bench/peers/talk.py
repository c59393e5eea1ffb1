"""Questions asked of a server now and then: make a stream, count what it holds. Never timed."""

from __future__ import annotations

import json
import socket
from typing import Any

from bench.peers.speech import nats_connect

Address = tuple[str, int]
TIMEOUT_S = 60.0


def line(address: Address, command: str) -> str:
    """One command of our control listener, and its reply."""
    with socket.create_connection(address, timeout=TIMEOUT_S) as asking:
        asking.sendall(command.encode() + b"\n")
        return asking.makefile("rb").readline().decode().strip()


def redis_command(*words: bytes | str) -> bytes:
    """A command as RESP writes it."""
    encoded = [word.encode() if isinstance(word, str) else word for word in words]
    parts = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded)
    return b"*%d\r\n%b" % (len(encoded), parts)


def redis_number(address: Address, *words: str) -> int:
    """A command whose reply is one number."""
    with socket.create_connection(address, timeout=TIMEOUT_S) as asking:
        asking.sendall(redis_command(*words))
        reply = asking.recv(4096)
        if not reply.startswith(b":"):
            raise ValueError(f"Redis said {reply[:100]!r} to {' '.join(words)}")
        return int(reply[1:])


def nats_request(subject: str, body: dict[str, Any]) -> bytes:
    """A request to JetStream's API, as it goes over the wire."""
    text = json.dumps(body).encode() if body else b""
    return b"PUB $JS.API.%b _INBOX.api %d\r\n%b\r\n" % (subject.encode(), len(text), text)


def nats_api(address: Address, subject: str, **body: Any) -> dict[str, Any]:
    """One request to JetStream's API."""
    with socket.create_connection(address, timeout=TIMEOUT_S) as asking:
        nats_connect(asking)
        asking.sendall(b"SUB _INBOX.api 1\r\n" + nats_request(subject, body))
        reader = asking.makefile("rb")
        while not (head := reader.readline()).startswith(b"MSG "):
            pass
        reply: dict[str, Any] = json.loads(reader.read(int(head.split()[-1])))
        if "error" in reply:
            raise ValueError(f"JetStream said {reply['error']} to {subject}")
        return reply
