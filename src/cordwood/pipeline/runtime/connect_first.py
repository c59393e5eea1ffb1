"""Connect a Python worker to Spark's JVM before it imports anything slow.

Spark forks most of its workers from a daemon and waits for the daemon without a limit. But it
starts the worker of a streaming source directly. That worker has ten seconds to connect and ten
more to authenticate, and no setting changes this (``PythonWorkerFactory`` and ``SocketAuthHelper``
of Spark 4.3). PySpark first imports itself, NumPy and Arrow, which takes half a second of CPU time
and more than ten seconds on a busy machine. So this module connects first, with only the standard
library, and PySpark then uses the existing connection.

Loaded by file name when such a worker starts (``worker_site``). Without the environment variables
of Spark 4.3, PySpark connects by itself as usual.
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
    """Open an authenticated connection to Java; None if Spark offers no TCP port and secret."""
    port = os.environ.get("PYTHON_WORKER_FACTORY_PORT")
    secret = os.environ.get("PYTHON_WORKER_FACTORY_SECRET")
    if not port or not secret:
        return None  # this Spark is configured to use Unix sockets
    host = "::1" if os.environ.get("SPARK_PREFER_IPV6", "").lower() == "true" else "127.0.0.1"
    connected = socket.create_connection((host, int(port)), WAIT_S)
    text = secret.encode()
    connected.sendall(struct.pack("!i", len(text)) + text)
    if _read(connected, struct.unpack("!i", _read(connected, 4))[0]) != b"ok":
        raise ConnectionError("Spark's Java process rejected the secret of this worker")
    connected.settimeout(None)
    return connected


def _read(connected: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connected.recv(size - len(data))
        if not more:
            raise ConnectionError(
                "Spark's Java process closed the connection of a worker it had just started"
            )
        data += more
    return data


def hand_over(connected: socket.socket) -> None:
    """Make PySpark use this connection instead of opening its own."""
    from pyspark import util

    size = int(os.environ.get("SPARK_BUFFER_SIZE", str(BUFFER_BYTES)))
    name = "local_connect_and_auth"
    asked = getattr(util, name)

    def made(*_: object) -> tuple[Any, socket.socket]:
        return connected.makefile("rwb", size), connected

    for module in list(sys.modules.values()):  # some have imported the function by name
        if getattr(module, name, None) is asked:
            setattr(module, name, made)


def connect_or_exit() -> socket.socket | None:
    """The same as ``connect``, but exit with one line on stderr if the connection fails."""
    try:
        return connect()
    except OSError as error:
        os.write(2, f"cordwood: {error}\n".encode())
        os._exit(1)  # Python is still starting up, where sys.exit causes a fatal error
