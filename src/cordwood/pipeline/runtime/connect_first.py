"""Connects a Python worker to Spark's Java before it imports anything that takes long.

Spark forks most of its workers from a daemon, and waits for that as long as it takes. The worker
that answers for a streaming source is started directly, and must have connected and named its
secret within ten seconds, twice; no setting says otherwise (``PythonWorkerFactory`` and
``SocketAuthHelper`` of Spark 4.3). Pyspark imports itself, NumPy and Arrow first: half a second of
a core, more than ten on a machine that is busy enough. So here the connection comes first, with
nothing but the standard library; pyspark then finds it made.

Loaded by file name when such a worker's Python starts (``worker_site``). Where anything is not as
it was in 4.3, pyspark connects by itself, as before.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from typing import Any

WAIT_S = 600.0
BUFFER_BYTES = 65536


def connect() -> socket.socket | None:
    """A connection on which Java knows us; None where Spark does not offer the usual one."""
    port = os.environ.get("PYTHON_WORKER_FACTORY_PORT")
    secret = os.environ.get("PYTHON_WORKER_FACTORY_SECRET")
    if not port or not secret:
        return None  # a Unix socket, of a Spark told to use those
    host = "::1" if os.environ.get("SPARK_PREFER_IPV6", "").lower() == "true" else "127.0.0.1"
    connected = socket.create_connection((host, int(port)), WAIT_S)
    text = secret.encode()
    connected.sendall(struct.pack("!i", len(text)) + text)
    if _read(connected, struct.unpack("!i", _read(connected, 4))[0]) != b"ok":
        raise ConnectionError("Spark's Java does not know the secret it gave this worker")
    connected.settimeout(None)
    return connected


def _read(connected: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connected.recv(size - len(data))
        if not more:
            raise ConnectionError("Spark's Java hung up on a worker it had just started")
        data += more
    return data


def hand_over(connected: socket.socket) -> None:
    """From now on pyspark finds the connection made when it asks for one."""
    from pyspark import util

    size = int(os.environ.get("SPARK_BUFFER_SIZE", str(BUFFER_BYTES)))
    name = "local_connect_and_auth"
    asked = getattr(util, name)

    def made(*_: object) -> tuple[Any, socket.socket]:
        return connected.makefile("rwb", size), connected

    for module in list(sys.modules.values()):  # some have taken the function by its name
        if getattr(module, name, None) is asked:
            setattr(module, name, made)


def connect_or_exit() -> socket.socket | None:
    """As ``connect``; a worker that Java does not want ends here, with one line on stderr."""
    try:
        return connect()
    except OSError as error:
        os.write(2, f"cordwood: {error}\n".encode())
        os._exit(1)  # Python is still starting: sys.exit would be a fatal error of its own
