"""Identity of a data directory: a permanent id, and a nonce made at each start of the broker.

Two directories may have the same path, on two machines or one after the other, and a copy has all
files of its original. The file ``identity`` tells them apart:

    version: 0
    data_id: 6Xb0pVd8QZ2v1m3m6VtX3A
    nonce: 8f0e6c1d5f8a4e07b7d3b7f1a2c4e6d8

``data_id`` is created with the directory and never changes; a directory older than this file gets
one at its next start. ``nonce`` and the file itself are new at every start of a broker, so an older
copy has another nonce, and a newer copy has another inode. A process that gets id, nonce and inode
from the broker and finds the same at a path has found the broker's own directory.
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
KAFKA_NAME: Final = "data.identity"  # the broker setting in DescribeConfigs
_FORM: Final = re.compile(
    rb"version: 0\ndata_id: ([A-Za-z0-9_-]{22})\nnonce: ([0-9a-f]{32})\n?", re.ASCII
)
_NO_INODE: Final = 0


class DataIdentity(NamedTuple):
    """The content of the file, and its inode."""

    data_id: str
    nonce: str
    inode: int

    @classmethod
    def fresh(cls, known: DataIdentity | None) -> Self:
        """For a starting broker: the known id or a new one, and a new nonce."""
        made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        return cls(known.data_id if known else made, secrets.token_hex(16), _NO_INODE)

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Self:
        """From the HTTP API's JSON; raises ``KeyError``, ``TypeError`` or ``ValueError``."""
        return cls(str(body["data_id"]), str(body["nonce"]), int(body["inode"]))

    @classmethod
    def parse_text(cls, text: str) -> Self | None:
        """Inverse of ``str``; None if the text is invalid."""
        data_id, _, rest = text.partition(":")
        nonce, _, inode = rest.partition(":")
        return cls(data_id, nonce, int(inode)) if nonce and inode.isdecimal() else None

    def __str__(self) -> str:
        """One line of text, for Kafka's DescribeConfigs."""
        return f"{self.data_id}:{self.nonce}:{self.inode}"

    def encode(self) -> bytes:
        """The text of the file."""
        return f"version: 0\ndata_id: {self.data_id}\nnonce: {self.nonce}\n".encode()


def read_identity(directory: Path) -> DataIdentity | None:
    """The identity of a directory; None if the file is missing or invalid."""
    try:
        with (directory / IDENTITY).open("rb") as file:
            text, inode = file.read(4096), os.fstat(file.fileno()).st_ino
    except OSError:
        return None
    match = _FORM.fullmatch(text)
    return DataIdentity(match[1].decode(), match[2].decode(), inode) if match else None
