"""Occasional requests to servers that are not timed: create a stream, count its messages."""

from __future__ import annotations

import json
import socket
from typing import Any

from bench.peers.speech import nats_connect

Address = tuple[str, int]
TIMEOUT_S = 60.0


def line(address: Address, command: str) -> str:
    """Send one command to our control listener and return its reply."""
    with socket.create_connection(address, timeout=TIMEOUT_S) as asking:
        asking.sendall(command.encode() + b"\n")
        return asking.makefile("rb").readline().decode().strip()


def redis_command(*words: bytes | str) -> bytes:
    """Encode a command in RESP."""
    encoded = [word.encode() if isinstance(word, str) else word for word in words]
    parts = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded)
    return b"*%d\r\n%b" % (len(encoded), parts)


def redis_number(address: Address, *words: str) -> int:
    """Send a command whose reply is one number."""
    with socket.create_connection(address, timeout=TIMEOUT_S) as asking:
        asking.sendall(redis_command(*words))
        reply = asking.recv(4096)
        if not reply.startswith(b":"):
            raise ValueError(f"Redis answered {reply[:100]!r} to {' '.join(words)}")
        return int(reply[1:])


def nats_request(subject: str, body: dict[str, Any]) -> bytes:
    """Encode a request to JetStream's API."""
    text = json.dumps(body).encode() if body else b""
    return b"PUB $JS.API.%b _INBOX.api %d\r\n%b\r\n" % (subject.encode(), len(text), text)


def nats_api(address: Address, subject: str, **body: Any) -> dict[str, Any]:
    """Send one request to JetStream's API and return its reply."""
    with socket.create_connection(address, timeout=TIMEOUT_S) as asking:
        nats_connect(asking)
        asking.sendall(b"SUB _INBOX.api 1\r\n" + nats_request(subject, body))
        reader = asking.makefile("rb")
        while not (head := reader.readline()).startswith(b"MSG "):
            pass
        reply: dict[str, Any] = json.loads(reader.read(int(head.split()[-1])))
        if "error" in reply:
            raise ValueError(f"JetStream answered {reply['error']} to {subject}")
        return reply
