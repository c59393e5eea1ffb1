"""A log file of bounded size for the output of another program."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import IO, Final

from cordwood.log.files.modes import like, open_with

logger = logging.getLogger("cordwood.server")

BYTES_MAX: Final = 4 << 20


class RotatingFile:
    """The newest output in ``path``, older output in ``path`` + ``.1``: at most twice the bound.

    If the disk rejects a write, the output is lost but the caller continues; this is logged once.
    """

    def __init__(self, path: Path, bytes_max: int = BYTES_MAX) -> None:
        """Opens nothing until the first write."""
        self.path = path
        self._bytes_max = bytes_max
        self._file: IO[bytes] | None = None
        self._is_refused = False

    def write(self, data: bytes) -> None:
        """Append; start a new file if the current one is full."""
        try:
            self._file_for(len(data)).write(data)
        except OSError as error:
            if not self._is_refused:
                logger.warning("log_file.refused path=%s error=%s", self.path, error)
            self._is_refused = True

    def _file_for(self, size: int) -> IO[bytes]:
        file = self._file or self._open()
        if file.tell() and file.tell() + size > self._bytes_max:
            file.close()
            self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            file = self._open()
        self._file = file
        return file

    def _open(self) -> IO[bytes]:
        """The output may quote records, so the file gets the permissions of its directory."""
        flags, mode = os.O_WRONLY | os.O_APPEND | os.O_CREAT, like(self.path.parent).file
        return os.fdopen(open_with(self.path, flags, mode), "ab", buffering=0)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
