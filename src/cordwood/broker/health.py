"""The broker's health, as ``/readyz``, ``cordwood check`` and the HTTP API report it.

Reads the health registry, the writer, the pipeline and the background tasks; keeps no state of its
own. A fact is empty or False when all is well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from cordwood.log.health.registry import Condition, DamagedRange, HealthRegistry
from cordwood.model import TopicPartition
from cordwood.protocol.api.status import Health
from cordwood.protocol.api.topics import DamageDetail, PartitionProblem

if TYPE_CHECKING:
    from cordwood.broker.broker import Broker

OK: Final = "ok"
# If one of these is set, the broker is not ready; the other values are only reported.
UNREADY: Final = ("disk_full", "offline_partitions", "damaged_partitions", "background_tasks_died")
UPKEEP: Final = (
    Condition.RETENTION_FAILED,
    Condition.PURGE_FAILED,
    Condition.INDEXING_FAILED,
    Condition.SCRUB_FAILED,
    Condition.COMPRESSION_FAILED,
    Condition.ARCHIVE_UNVERIFIED,
)


def health_of(broker: Broker) -> Health:
    """Return what works, what does not and why."""
    registry = broker.store.health
    health = Health(
        ready=True,
        disk_full=broker.writer.stats.disk_full,
        data_directory=broker.directory.problem or OK,
        offline_partitions=_named(registry.reasons(Condition.OFFLINE, Condition.READ_ONLY)),
        damaged_partitions=damaged(registry),
        damage_accepted=_named(_joined(registry.accepted())),  # reported, not a problem any more
        maintenance_failed=_named(registry.reasons(*UPKEEP)),
        compaction_quarantined=_named(broker.compaction.quarantined()),
        deliveries_quarantined=dict(broker.deliveries.quarantined),  # block only their own query
        background_tasks_died=dict(broker.background.died),
        pipeline_jobs_failed=broker.pipeline.failed_jobs(),
        pipeline=broker.pipeline.state.value,
    )
    return msgspec.structs.replace(health, ready=is_served(health))


def is_served(health: Health) -> bool:
    """Return whether every request for existing data can be answered."""
    return health.data_directory == OK and not any(getattr(health, name) for name in UNREADY)


def damaged(registry: HealthRegistry) -> dict[str, str]:
    """Return the partitions with unreadable records, and where those are."""
    return _named(registry.reasons(Condition.READ_FAILED) | _joined(registry.damaged()))


def topic_problems(registry: HealthRegistry, topic: str) -> tuple[PartitionProblem, ...]:
    """Return the partitions of a topic that have a problem, offline ones included."""
    return tuple(partition_state(registry, tp) for tp in registry.troubled() if tp.topic == topic)


def partition_state(registry: HealthRegistry, tp: TopicPartition) -> PartitionProblem:
    """Return one partition's health as the HTTP API shows it."""
    conditions = registry.conditions(tp)
    ranges = registry.damage(tp)
    if Condition.OFFLINE in conditions:
        state = "offline"
    elif Condition.READ_ONLY in conditions:
        state = "read-only"
    else:
        is_damaged = any(not each.accepted for each in ranges)
        state = "damaged" if is_damaged or Condition.READ_FAILED in conditions else "online"
    return PartitionProblem(
        partition=tp.partition,
        state=state,
        problems={condition.value: reason for condition, reason in conditions.items()},
        damage=tuple(DamageDetail(*each) for each in ranges),
    )


def _joined(damage: Mapping[TopicPartition, Sequence[DamagedRange]]) -> dict[TopicPartition, str]:
    return {tp: "; ".join(map(str, ranges)) for tp, ranges in damage.items()}


def _named(reasons: Mapping[TopicPartition, str]) -> dict[str, str]:
    return {str(tp): reason for tp, reason in sorted(reasons.items())}
