"""Scenarios: end-to-end checks that a user can run against a real broker.

    cordwood scenario resume

Each prints logfmt lines and ends with ``outcome=PASS`` or raises ``Failed``. The tests run the same
functions. Most scenarios use only what a user has: child processes, sockets and the client. Those
that need a stalling disk or look at internal state run an embedded broker; the stalling disk
replaces its ``Files``.
"""

from __future__ import annotations

from collections.abc import Callable

from cordwood.lab.scenarios import (
    archive,
    compaction,
    delivery,
    letters,
    pipeline,
    pressure,
    segments,
)
from cordwood.lab.scenarios.stage import Failed, ScenarioRun

__all__ = ["SCENARIOS", "Failed", "ScenarioRun"]

SCENARIOS: dict[str, Callable[[ScenarioRun], None]] = {
    "resume": delivery.resume,
    "ack-retry": delivery.ack_retry,
    "routing": pipeline.routing,
    "exactly-once": pipeline.exactly_once,
    "backpressure-block": pressure.block,
    "backpressure-drop": pressure.drop,
    "rotation": segments.rotation,
    "retention": segments.retention,
    "smpte": segments.smpte,
    "walrus-rollover": segments.walrus_rollover,
    "cold-storage": archive.cold_storage,
    "compaction-under-load": compaction.under_load,
    "dead-letter": letters.dead_letter,
}
