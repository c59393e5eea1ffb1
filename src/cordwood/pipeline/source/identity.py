"""Check that a path on this machine is the broker's own data directory.

The same path may be a different directory on each machine: another broker's, an old copy, or
missing. A path is used only if its ``identity`` file matches the identity that the broker reports
(``log.format.identity``). Otherwise records are read over the Kafka protocol.

The broker is asked once per process and identity; the answer is cached until the file at the path
changes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from cordwood.client.http import ANSWER_S
from cordwood.client.kafka import KafkaClient
from cordwood.errors import CordwoodError, NotDataDirectory, UnavailableError
from cordwood.log.format.identity import IDENTITY, KAFKA_NAME, DataIdentity, read_identity
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi

Task = TypeVar("Task")
Result = TypeVar("Result")

_log: Final = logging.getLogger("cordwood.source")
_verdicts: dict[tuple[str, BrokerAddress], tuple[DataIdentity, bool]] = {}  # of this process
_closed: set[str] = set()  # unreadable paths that were already logged


def is_proved(path: str, where: BrokerAddress) -> bool:
    """Whether ``path`` on this machine is the data directory of the broker at ``where``."""
    here = read_identity(Path(path))
    if here is None:
        _warn_if_closed(path)
        return False
    seen = _verdicts.get((path, where))
    if seen is not None and seen[0] == here:
        return seen[1]
    expected = ask_identity(where)
    if expected is None:  # not cached: the next call asks again
        return False
    if expected != here:
        _log.warning(
            "source.path_refused path=%s broker=%s: it is a different data directory on this "
"machine; records are read over the network", path, where,
        )  # fmt: skip
    _verdicts[path, where] = here, expected == here
    return expected == here


def _warn_if_closed(path: str) -> None:
    """Warn once if this user may not read the directory, as reading over the network is slower."""
    if path not in _closed and Path(path).is_dir() and not _may_enter(path):
        _closed.add(path)
        _log.warning(
            "source.path_closed path=%s: this user may not read it, so records are read over the "
"network; start the broker with file.mode=group and share its group", path,
        )  # fmt: skip


def _may_enter(path: str) -> bool:
    return os.access(path, os.R_OK | os.X_OK, effective_ids=True)


def ask_identity(where: BrokerAddress) -> DataIdentity | None:
    """The identity of the broker's data directory; None if it does not answer or has none."""
    try:
        if where.http is not None:
            with closing(BrokerApi(where, timeout_s=0)) as api:
                return DataIdentity(*msgspec.structs.astuple(api.status().identity))
        for server in (where.servers or "").split(","):
            try:
                with KafkaClient(server.strip(), timeout_s=ANSWER_S, tls=where.tls) as client:
                    shown = {config.name: config.value for config in client.broker_config()}
            except UnavailableError:
                continue
            return DataIdentity.parse_text(shown.get(KAFKA_NAME) or "")
    except CordwoodError as error:
        _log.warning("source.identity_unknown broker=%s error=%s", where, error)
    return None


def check_data_id(path: str, data_id: str | None) -> None:
    """Raise ``NotDataDirectory`` if this is not the directory that the query was planned with.

    For queries without a broker, which can only compare the identity files of two machines.
    """
    here = read_identity(Path(path))
    if data_id is not None and (here is None or here.data_id != data_id):
        raise NotDataDirectory(
            f"{path} on this machine is not the data directory the query was planned with (its "
            f"{IDENTITY} file says so); mount the same directory on driver and executors, or set "
            "kafka.bootstrap.servers too, so that records can be read over the network"
        )


def data_id_at(path: str | None) -> str | None:
    """The id of the data directory at a path; None without a path or an identity file."""
    here = read_identity(Path(path)) if path else None
    return here.data_id if here else None


def on_directory(
    path: str, expected: DataIdentity, work: Callable[[Task], Result], task: Task
) -> Result:
    """Run a task that opens files below ``path``, after ``check_identity`` has accepted it."""
    check_identity(path, expected)
    return work(task)


def check_identity(path: str, expected: DataIdentity) -> None:
    """Raise ``UnavailableError`` if the path is not the broker's data directory."""
    if read_identity(Path(path)) != expected:
        raise UnavailableError(
            f"{path} on this machine is not the broker's data directory; compaction needs it on "
            "every executor: mount it there, or run the job on the broker's machine"
        )
