"""Whether a path leads to the broker's own data directory, on the machine that opens it.

Executors, drivers and brokers may see different directories under one path: another broker's, an
old copy, nothing at all. A path is believed only where its ``identity`` file says what
the broker says of itself (``log.format.identity``). Where it does not, records go over the wire.

The broker is asked once per process and identity: as long as the file at the path is the one that
was proved, nothing needs to be asked again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeVar

from cordwood.client.http import ANSWER_S
from cordwood.client.kafka import KafkaClient
from cordwood.errors import CordwoodError, NotDataDirectory, UnavailableError
from cordwood.log.format.identity import IDENTITY, KAFKA_NAME, DataIdentity, read_identity
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi

Task = TypeVar("Task")
Result = TypeVar("Result")

_log: Final = logging.getLogger("cordwood.source")
_verdicts: dict[tuple[str, BrokerAddress], tuple[DataIdentity, bool]] = {}  # of this process
_closed: set[str] = set()  # paths that were warned of


def is_proved(path: str, where: BrokerAddress) -> bool:
    """Whether the directory at ``path``, here, is the one the broker at ``where`` writes."""
    here = read_identity(Path(path))
    if here is None:
        _warn_if_closed(path)
        return False
    seen = _verdicts.get((path, where))
    if seen is not None and seen[0] == here:
        return seen[1]
    told = ask_identity(where)
    if told is None:  # asked again the next time
        return False
    if told != here:
        _log.warning(
            "source.path_refused path=%s broker=%s: another data directory lies there on this "
            "machine; records are read over the wire", path, where,
        )  # fmt: skip
    _verdicts[path, where] = here, told == here
    return told == here


def _warn_if_closed(path: str) -> None:
    """Say once that a directory is there and not for this user: the wire is slower than files."""
    if path not in _closed and Path(path).is_dir() and not _may_enter(path):
        _closed.add(path)
        _log.warning(
            "source.path_closed path=%s: this user may not read it, so records are read over the "
            "wire; start the broker with file.mode=group and share its group", path,
        )  # fmt: skip


def _may_enter(path: str) -> bool:
    return os.access(path, os.R_OK | os.X_OK, effective_ids=True)


def ask_identity(where: BrokerAddress) -> DataIdentity | None:
    """What the broker says of its directory; None when it does not answer, or does not know."""
    try:
        if where.http is not None:
            with closing(BrokerApi(where, timeout_s=0)) as api:
                return parse_told(api.status())
        for server in (where.servers or "").split(","):
            try:
                with KafkaClient(server.strip(), timeout_s=ANSWER_S) as client:
                    shown = {config.name: config.value for config in client.broker_config()}
            except UnavailableError:
                continue
            return DataIdentity.parse_text(shown.get(KAFKA_NAME) or "")
    except CordwoodError as error:
        _log.warning("source.identity_unknown broker=%s error=%s", where, error)
    return None


def parse_told(status: Mapping[str, Any]) -> DataIdentity | None:
    """The identity in an answer of ``/api/status``; None from a broker that has none."""
    try:
        return DataIdentity.parse(status["identity"])
    except (KeyError, TypeError, ValueError):
        return None


def check_data_id(path: str, data_id: str | None) -> None:
    """Refuse another directory than the one a query was planned with; raises ``NotDataDirectory``.

    For queries without a broker, which can compare nothing but the two machines' own files.
    """
    here = read_identity(Path(path))
    if data_id is not None and (here is None or here.data_id != data_id):
        raise NotDataDirectory(
            f"{path} on this machine is not the data directory the query was planned with (its "
            f"{IDENTITY} file says so); mount the same directory on driver and executors, or set "
            "kafka.bootstrap.servers too, so that records can go over the wire"
        )


def data_id_at(path: str | None) -> str | None:
    """The id of the directory at a path; None without one."""
    here = read_identity(Path(path)) if path else None
    return here.data_id if here else None


def on_directory(
    path: str, told: DataIdentity, work: Callable[[Task], Result], task: Task
) -> Result:
    """Do a task that opens files below ``path``, after a look whether it is the broker's."""
    check_identity(path, told)
    return work(task)


def check_identity(path: str, told: DataIdentity) -> None:
    """Refuse a path that does not lead to the broker's directory; raises ``UnavailableError``."""
    if read_identity(Path(path)) != told:
        raise UnavailableError(
            f"{path} on this machine is not the broker's data directory; compaction needs it on "
            "every executor: mount it there, or run the job on the broker's machine"
        )
