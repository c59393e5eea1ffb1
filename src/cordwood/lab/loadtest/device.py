"""Measure fdatasync on the disk alone: the lower bound of every durable acknowledgement."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from cordwood.lab.loadtest.results import Results

SYNCS: Final = 200
SYNC_BYTES: Final = 4096


def sync(directory: Path) -> Results:
    """Repeatedly append a block to a new file in the directory and fdatasync it."""
    path = directory / "sync.probe"
    block = bytes(SYNC_BYTES)
    waits = []
    started = time.perf_counter()
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        for _ in range(SYNCS):
            began = time.perf_counter()
            os.write(fd, block)
            os.fdatasync(fd)
            waits.append(time.perf_counter() - began)
    finally:
        os.close(fd)
        path.unlink()
    return Results(
        workload="fdatasync of 4 kB",
        client="the disk",
        records=SYNCS,
        size_bytes=SYNC_BYTES,
        seconds=time.perf_counter() - started,
        waits_s=waits,
    )
