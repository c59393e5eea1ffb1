"""Which data directory this is: a name for good, and a sign that the broker made when it started.

Two directories may lie at the same path, on two machines or one after the other, and a copy has all
files of its original. The file ``identity`` tells them apart:

    version: 0
    data_id: 6Xb0pVd8QZ2v1m3m6VtX3A
    nonce: 8f0e6c1d5f8a4e07b7d3b7f1a2c4e6d8

``data_id`` is made with the directory and kept; a directory from before there were ids gets one at
its next start. ``nonce`` is made anew at every start of a broker, and the file with it, so that an
older copy holds another nonce, and a copy made since is another inode. Whoever is told all three by
the broker and finds them at a path looks at the broker's own directory.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

IDENTITY: Final = "identity"
KAFKA_NAME: Final = "data.identity"  # as DescribeConfigs tells it of the broker
_FORM: Final = re.compile(
    rb"version: 0\ndata_id: ([A-Za-z0-9_-]{22})\nnonce: ([0-9a-f]{32})\n?", re.ASCII
)
_NO_INODE: Final = 0


class DataIdentity(NamedTuple):
    """What the file says, and which file says it."""

    data_id: str
    nonce: str
    inode: int

    @classmethod
    def fresh(cls, known: DataIdentity | None) -> Self:
        """For a broker that starts: the id that is known, or a new one, and a new nonce."""
        made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        return cls(known.data_id if known else made, secrets.token_hex(16), _NO_INODE)

    @classmethod
    def parse(cls, told: Mapping[str, Any]) -> Self:
        """As the HTTP API tells it; raises ``KeyError``, ``TypeError`` or ``ValueError``."""
        return cls(str(told["data_id"]), str(told["nonce"]), int(told["inode"]))

    @classmethod
    def parse_text(cls, text: str) -> Self | None:
        """As ``str`` gives it, or None for anything else."""
        data_id, _, rest = text.partition(":")
        nonce, _, inode = rest.partition(":")
        return cls(data_id, nonce, int(inode)) if nonce and inode.isdecimal() else None

    def __str__(self) -> str:
        """On one line, for Kafka's DescribeConfigs."""
        return f"{self.data_id}:{self.nonce}:{self.inode}"

    def encode(self) -> bytes:
        """The file's text."""
        return f"version: 0\ndata_id: {self.data_id}\nnonce: {self.nonce}\n".encode()


def read_identity(directory: Path) -> DataIdentity | None:
    """What the directory's file says; None without one, or for anything else under its name."""
    try:
        with (directory / IDENTITY).open("rb") as file:
            text, inode = file.read(4096), os.fstat(file.fileno()).st_ino
    except OSError:
        return None
    match = _FORM.fullmatch(text)
    return DataIdentity(match[1].decode(), match[2].decode(), inode) if match else None
