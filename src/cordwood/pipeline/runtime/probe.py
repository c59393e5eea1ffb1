"""Check that the driver and the executors share a storage location, before a job writes there.

The driver writes a file that every task must read, and tasks write files that the driver must read.
A directory on each machine's local disk fails this check, before any work depends on it.
"""

from __future__ import annotations

import io
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cordwood.client.storage import PROBES, Storage, open_storage, read_small
from cordwood.errors import UnavailableError
from cordwood.pipeline.runtime.session import is_local, is_remote
from cordwood.pipeline.runtime.tasks import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS_MAX: Final = 16  # enough to fail early; every later task calls ``Probe.check`` as well


@dataclass(frozen=True, slots=True)
class Probe:
    """A file written by the driver that every task must find; small and picklable."""

    place: str
    name: str
    text: str
    option: str  # the command-line option that sets the place

    def check(self) -> None:
        """Raise ``UnavailableError`` if this executor does not see the driver's file."""
        if read_small(open_storage(self.place), self.name) != self.text.encode():
            raise not_shared(
                self.place, self.option, "does not see the file that the driver wrote there"
            )


@contextmanager
def shared_place(
    spark: SparkSession, storage: Storage, prefix: str, *, tasks: int, option: str
) -> Iterator[Probe]:
    """Check the location with up to ``tasks`` tasks; the probe file exists while the body runs."""
    token = secrets.token_hex(8)
    probe = Probe(storage.place, f"{prefix}/{PROBES}/{token}", token, option)
    numbers = range(max(1, min(tasks, 1 if is_embedded(spark) else TASKS_MAX)))
    written = [f"{probe.name}-{number}" for number in numbers]
    storage.put(probe.name, io.BytesIO(token.encode()))
    try:
        label = f"does every executor see {storage.place}? {len(written)} probes"
        run_tasks(spark, write_probe, [(probe, name) for name in written], label=label)
        for name in written:
            if read_small(storage, name) != name.encode():
                raise not_shared(
                    storage.place, option, "wrote a file there that the driver does not see"
                )
            storage.remove(name)
        yield probe
    finally:
        with suppress(OSError, UnavailableError):  # a later run removes leftover files
            for name in (probe.name, *written):
                storage.remove(name)
            storage.sweep(f"{prefix}/{PROBES}", lambda _: False)


def is_embedded(spark: SparkSession) -> bool:
    """Whether all tasks run on the driver's machine, so that one probe is enough."""
    return not is_remote(spark) and is_local(spark.sparkContext.master)


def write_probe(task: tuple[Probe, str]) -> None:
    """Read the driver's file and write one for the driver; runs on an executor."""
    probe, name = task
    probe.check()
    open_storage(probe.place).put(name, io.BytesIO(name.encode()))


def not_shared(place: str, option: str, what: str) -> UnavailableError:
    """The error for a location that is not shared by all machines."""
    return UnavailableError(
        f"{place} is not shared: a Spark executor (on {socket.gethostname()}) {what}, or the "
        f"other way round; give {option} a directory that is mounted on every machine, or an "
        "object store such as s3://bucket/path"
    )
