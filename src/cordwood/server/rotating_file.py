"""A file for what another program says: kept for whoever looks, never more than so much of it."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import IO, Final

from cordwood.log.files.modes import like, open_with

logger = logging.getLogger("cordwood.server")

BYTES_MAX: Final = 4 << 20


class RotatingFile:
    """The newest words, in ``path``; older ones beside it, with ``.1``. Together twice the bound.

    A disk that refuses them loses words, never the caller; that is said once.
    """

    def __init__(self, path: Path, bytes_max: int = BYTES_MAX) -> None:
        """Opens nothing until there is something to write."""
        self.path = path
        self._bytes_max = bytes_max
        self._file: IO[bytes] | None = None
        self._is_refused = False

    def write(self, said: bytes) -> None:
        """Append, in a new file where the old one is full."""
        try:
            self._room_for(len(said)).write(said)
        except OSError as error:
            if not self._is_refused:
                logger.warning("journal.refused path=%s error=%s", self.path, error)
            self._is_refused = True

    def _room_for(self, size: int) -> IO[bytes]:
        file = self._file or self._open()
        if file.tell() and file.tell() + size > self._bytes_max:
            file.close()
            self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            file = self._open()
        self._file = file
        return file

    def _open(self) -> IO[bytes]:
        """Records may be quoted in it: who may read them may read it."""
        flags, mode = os.O_WRONLY | os.O_APPEND | os.O_CREAT, like(self.path.parent).file
        return os.fdopen(open_with(self.path, flags, mode), "ab", buffering=0)

    def close(self) -> None:
        """Nothing more comes."""
        if self._file is not None:
            self._file.close()
            self._file = None
