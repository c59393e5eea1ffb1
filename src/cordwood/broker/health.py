"""The broker's health, as ``/readyz``, ``cordwood check`` and the HTTP API report it.

Reads the health registry, the writer, the pipeline and the background tasks; keeps no state of its
own. A fact is empty or False when all is well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from cordwood.log.health.registry import Condition, DamagedRange, HealthRegistry
from cordwood.model import TopicPartition

if TYPE_CHECKING:
    from cordwood.broker.broker import Broker

# If one of these is set, the broker is not ready; the other facts are only reported.
UNREADY: Final = ("disk_full", "offline_partitions", "damaged_partitions", "background_tasks_died")
UPKEEP: Final = (
    Condition.RETENTION_FAILED,
    Condition.PURGE_FAILED,
    Condition.INDEXING_FAILED,
    Condition.SCRUB_FAILED,
    Condition.ARCHIVE_UNVERIFIED,
)


def readiness(broker: Broker) -> dict[str, Any]:
    """Return every health fact by its JSON name."""
    registry = broker.store.health
    quarantined = _named(broker.compaction.quarantined())
    return {
        "disk_full": broker.writer.stats.disk_full,
        "data_directory": broker.directory.problem or "ok",
        "offline_partitions": _named(registry.reasons(Condition.OFFLINE, Condition.READ_ONLY)),
        "damaged_partitions": damaged(registry),
        "damage_accepted": _named(_joined(registry.accepted())),  # reported, not a problem any more
        "maintenance_failed": _named(registry.reasons(*UPKEEP)),
        "compaction_quarantined": quarantined,
        "deliveries_quarantined": dict(broker.deliveries.quarantined),  # block only their own query
        "background_tasks_died": dict(broker.background.died),
        "pipeline_jobs_failed": broker.pipeline.failed_jobs(),
        "pipeline": broker.pipeline.state.value,
    }


def is_served(facts: Mapping[str, Any]) -> bool:
    """Return whether every request for existing data can be answered."""
    return facts["data_directory"] == "ok" and not any(facts[name] for name in UNREADY)


def damaged(registry: HealthRegistry) -> dict[str, str]:
    """Return the partitions with unreadable records, and where those are."""
    return _named(registry.reasons(Condition.READ_FAILED) | _joined(registry.damaged()))


def topic_problems(registry: HealthRegistry, topic: str) -> list[dict[str, Any]]:
    """Return the partitions of a topic that have a problem, offline ones included."""
    return [
        {"partition": tp.partition, **partition_state(registry, tp)}
        for tp in registry.troubled()
        if tp.topic == topic
    ]


def partition_state(registry: HealthRegistry, tp: TopicPartition) -> dict[str, Any]:
    """Return one partition's health as the HTTP API shows it."""
    conditions = registry.conditions(tp)
    ranges = registry.damage(tp)
    if Condition.OFFLINE in conditions:
        state = "offline"
    elif Condition.READ_ONLY in conditions:
        state = "read-only"
    else:
        is_damaged = any(not found.accepted for found in ranges)
        state = "damaged" if is_damaged or Condition.READ_FAILED in conditions else "online"
    return {
        "state": state,
        "problems": {condition.value: reason for condition, reason in conditions.items()},
        "damage": [found._asdict() for found in ranges],
    }


def _joined(damage: Mapping[TopicPartition, Sequence[DamagedRange]]) -> dict[TopicPartition, str]:
    return {tp: "; ".join(map(str, ranges)) for tp, ranges in damage.items()}


def _named(reasons: Mapping[TopicPartition, str]) -> dict[str, str]:
    return {str(tp): reason for tp, reason in sorted(reasons.items())}
