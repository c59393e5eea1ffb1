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
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import numpy as np

from cordwood.batch.columns import Columns
from cordwood.config import MIB
from cordwood.log.format.manifest import STAGING_NAME
from cordwood.log.staging.area import StagingArea, sha256_of
from cordwood.model import Codec
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi
from cordwood.pipeline.runtime.targets import Targets, encode_fitting
from cordwood.pipeline.source.identity import is_proved
from cordwood.protocol.api.deliveries import DeliveryPart, DiscardJob

FILE_BYTES: Final = 8 * MIB  # a part is written once it reaches this; uploads may be 16 MiB
HELD_BYTES_MAX: Final = 64 * MIB  # buffered by a task for all partitions before it flushes


@dataclass(frozen=True, slots=True)
class StagingTarget:
    """Where jobs stage files; small and picklable."""

    where: BrokerAddress
    data: str

    @classmethod
    def of(cls, api: BrokerApi) -> StagingTarget:
        """Ask the broker for its data directory."""
        return cls(api.where, api.status().data)

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
        with closing(BrokerApi(self.where)) as api:
            api.call(DiscardJob(job))


def name_job(query: str, batch: int) -> str:
    """Name the staging directory of one attempt to deliver a batch; attempts never share one."""
    return f"{query}.{batch}.{secrets.token_hex(4)}"


class StagingWriter:
    """Stages the output of one task; file names are random so that attempts never collide."""

    def __init__(
        self, target: StagingTarget, job: str, targets: Targets, *, codec: Codec = Codec.NONE
    ) -> None:
        """Creates no file and opens no connection before the first write."""
        self._target = target
        self._job = job
        self._targets = targets
        self._codec = codec
        self._mark = secrets.token_hex(4)
        self._held: dict[tuple[str, int], list[bytes | bytearray]] = {}
        self._held_bytes = 0
        self._area: StagingArea | None = None
        self._api: BrokerApi | None = None
        self.parts: list[DeliveryPart] = []

    def add(self, topic: str, partition: int, columns: Columns) -> None:
        """Encode rows and append them, in order, to the partition's buffer.

        Rows are numbered from 0; the broker assigns their offsets.
        """
        bytes_max = self._targets.get(topic).batch_bytes_max
        rows = replace(columns, offsets=np.arange(len(columns), dtype=np.int64))
        self.put(topic, partition, encode_fitting(rows, self._codec, topic, bytes_max))

    def put(self, topic: str, partition: int, data: bytes | bytearray) -> None:
        """Append whole batches to the partition's buffer; writes files when it is full."""
        self._held.setdefault((topic, partition), []).append(data)
        self._held_bytes += len(data)
        if sum(map(len, self._held[topic, partition])) >= FILE_BYTES:
            self._write(topic, partition)
        elif self._held_bytes >= HELD_BYTES_MAX:
            self.flush()

    def flush(self) -> Sequence[DeliveryPart]:
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
        self.parts.append(DeliveryPart(topic, partition, name, sha256_of(held), topic_id))

    def _put(self, name: str, held: list[bytes | bytearray]) -> None:
        if self._area is None and self._api is None:
            if self._target.is_writable():
                self._area = StagingArea(Path(self._target.data))
            else:
                self._api = BrokerApi(self._target.where)
        if self._area is not None:
            with self._area.new_job(self._job) as files:
                files.write(name, held)
        elif self._api is not None:
            self._api.upload(self._job, name, b"".join(held))

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection; does not flush."""
        self.close()
