"""The broker's health, status and embedded pipeline."""

from __future__ import annotations

from typing import Any

import msgspec

from cordwood.protocol.api.call import Call


class Health(msgspec.Struct, frozen=True):
    """What works and what does not; each mapping holds reasons and is empty when all is well."""

    ready: bool
    disk_full: bool
    data_directory: str  # "ok", or the problem
    offline_partitions: dict[str, str]
    damaged_partitions: dict[str, str]
    damage_accepted: dict[str, str]
    maintenance_failed: dict[str, str]
    compaction_quarantined: dict[str, str]
    deliveries_quarantined: dict[str, str]
    background_tasks_died: dict[str, str]
    pipeline_jobs_failed: dict[str, str]
    pipeline: str


class GetHealth(Call[Health], frozen=True):
    """Ask for the broker's health; the status is 200 even if something is wrong."""

    route = "GET", "/health"


class DirectoryIdentity(msgspec.Struct, frozen=True):
    """The identity of the broker's data directory, for jobs that look for it on their machine."""

    data_id: str
    nonce: str
    inode: int


class BrokerStatus(msgspec.Struct, frozen=True):
    """Version, data directory, addresses, and the settings that differ from their defaults."""

    version: str
    cluster_id: str
    data: str
    identity: DirectoryIdentity
    addresses: dict[str, list[str]]
    topics: int
    config: dict[str, str]
    ingress_topic: str
    dead_letter_topic: str


class GetBrokerStatus(Call[BrokerStatus], frozen=True):
    """Ask for the broker's status."""

    route = "GET", "/status"


class PipelineReport(msgspec.Struct, frozen=True):
    """State of the embedded pipeline; ``jobs`` is what its process last reported."""

    state: str
    detail: str
    restarts: int
    pid: int | None
    jobs: dict[str, Any]
    job_failures: dict[str, int]
    not_compacting: str = ""  # why compacted topics are not compacted, and the remedy


class GetPipeline(Call[PipelineReport], frozen=True):
    """Ask for the state of the embedded pipeline and its jobs."""

    route = "GET", "/pipeline"
