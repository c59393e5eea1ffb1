"""Staged files: tasks write record batches where the broker finds them for delivery.

A task adds batches to a ``StagingWriter``, which buffers them per partition and writes files of
bounded size under ``staging/<job>/`` in the data directory. If the task's machine cannot reach that
directory, the files are uploaded through the HTTP listener. The task returns the file names and
their sha256 to the driver, which asks the broker to deliver them. The broker never reads a file
that no delivery lists, and rejects a file whose sha256 does not match.

Never calls fsync: the broker does that before it relies on the files.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from cordwood.batch.columns import Columns
from cordwood.config import MIB
from cordwood.log.format.manifest import STAGING_NAME
from cordwood.log.staging.area import StagingArea, sha256_of
from cordwood.model import Codec
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi, Part
from cordwood.pipeline.sink.targets import Targets, encode_fitting
from cordwood.pipeline.source.identity import is_proved

FILE_BYTES: Final = 8 * MIB  # a part is written once it reaches this; uploads may be 16 MiB
HELD_BYTES_MAX: Final = 64 * MIB  # buffered by a task for all partitions before it flushes


@dataclass(frozen=True, slots=True)
class StagingTarget:
    """Where jobs stage files; small and picklable."""

    where: BrokerAddress
    data: str

    @classmethod
    def of(cls, api: BrokerApi, where: BrokerAddress) -> StagingTarget:
        """Ask the broker for its data directory."""
        return cls(where, api.status()["data"])

    def is_reachable(self) -> bool:
        """Whether that path on this machine is the broker's own data directory."""
        return is_proved(self.data, self.where)

    def is_writable(self) -> bool:
        """Whether this process can stage files in the data directory directly."""
        return self.is_reachable() and any(
            os.access(place, os.W_OK | os.X_OK)
            for place in (Path(self.data) / STAGING_NAME, Path(self.data))
            if place.exists()
        )

    def discard(self, job: str) -> None:
        """Delete the files that a job has staged."""
        api = BrokerApi(self.where)
        try:
            api.discard(job)
        finally:
            api.close()


class StagingWriter:
    """Stages the output of one task; file names are random so that attempts never collide."""

    def __init__(
        self, staging: StagingTarget, job: str, targets: Targets, *, codec: Codec = Codec.NONE
    ) -> None:
        """Creates no file and opens no connection before the first write."""
        self._staging = staging
        self._job = job
        self._targets = targets
        self._codec = codec
        self._mark = secrets.token_hex(4)
        self._held: dict[tuple[str, int], list[bytes | bytearray]] = {}
        self._held_bytes = 0
        self._area: StagingArea | None = None
        self._api: BrokerApi | None = None
        self.parts: list[Part] = []

    def add(self, topic: str, partition: int, columns: Columns) -> None:
        """Encode rows and append them, in order, to the partition's buffer."""
        bytes_max = self._targets.get(topic).batch_bytes_max
        self.put(topic, partition, encode_fitting(columns, self._codec, topic, bytes_max))

    def put(self, topic: str, partition: int, data: bytes | bytearray) -> None:
        """Append whole batches to the partition's buffer; writes files when it is full."""
        self._held.setdefault((topic, partition), []).append(data)
        self._held_bytes += len(data)
        if sum(map(len, self._held[topic, partition])) >= FILE_BYTES:
            self._write(topic, partition)
        elif self._held_bytes >= HELD_BYTES_MAX:
            self.flush()

    def flush(self) -> Sequence[Part]:
        """Write all buffered batches; returns every part so far, in order."""
        for topic, partition in list(self._held):
            self._write(topic, partition)
        return self.parts

    def close(self) -> None:
        """Close the connection, if files were uploaded."""
        if self._api is not None:
            self._api.close()

    def _write(self, topic: str, partition: int) -> None:
        held = self._held.pop((topic, partition))
        self._held_bytes -= sum(map(len, held))
        name = f"{self._mark}-{len(self.parts)}"
        self._put(name, held)
        topic_id = self._targets.get(topic).id
        self.parts.append(Part(topic, partition, name, sha256_of(held), topic_id))

    def _put(self, name: str, held: list[bytes | bytearray]) -> None:
        if self._area is None and self._api is None:
            self._open()
        if self._api is not None:
            self._api.upload(self._job, name, b"".join(held))
            return
        assert self._area is not None
        with self._area.new_job(self._job) as files:
            files.write(name, held)

    def _open(self) -> None:
        if self._staging.is_writable():
            self._area = StagingArea(Path(self._staging.data))
        else:
            self._api = BrokerApi(self._staging.where)

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection; does not flush."""
        self.close()
