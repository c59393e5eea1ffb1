"""The settings of a topic, one row each; the names are Kafka's where Kafka has the setting.

Every topic setting of Kafka 4 has a row, so that its tools and topic definitions work unchanged.
Those that mean nothing on one broker without tiered storage say so in their documentation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cordwood.settings.rows import (
    DAY_MS,
    GIB,
    KEEP_ALL,
    LONG_MAX,
    MIB,
    MINUTE_MS,
    limit,
    setting,
)

GZIP_DEFAULT_LEVEL: Final = -1
_REPLICA: Final = re.compile(r"\d+:\d+|\*")
_NO_TIERS: Final = "there is no tiered storage; `cordwood archive` keeps old records elsewhere"


def _check_replicas(replicas: frozenset[str]) -> str:
    wrong = sorted(each for each in replicas if not _REPLICA.fullmatch(each))
    return f"{wrong[0]!r} is not partition:broker or *" if wrong else ""


def _check_gzip_level(level: int) -> str:
    return "0 is no level; use 1 to 9, or -1 for the usual one" if level == 0 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """Settings of a topic; the names are Kafka's where Kafka has the setting."""

    cleanup_policy: frozenset[str] = setting(
        frozenset({"delete"}),
        "What removes sealed records: delete (by age or size), compact (superseded by key), "
        "consume (once every registered reader has passed them). They can be combined.",
        choices=("delete", "compact", "consume"),
    )
    segment_bytes: int = setting(
        GIB, "Seal the active segment before it exceeds this size.", low=14, high=2**31 - 1
    )
    segment_ms: int = setting(
        7 * DAY_MS, "Seal the active segment when its first record is this old.", low=1
    )
    segment_jitter_ms: int = setting(
        0,
        "Subtract up to this much, different for each segment, from segment.ms, so that the "
        "segments of many partitions are not sealed at the same time.",
        low=0,
    )
    segment_index_bytes: int = setting(
        10 * MIB,
        "Seal the active segment when its offset index or time index has this size.",
        low=4,
        high=2**31 - 1,
    )
    segment_entries: int = setting(
        1_000_000, "Seal the active segment when it has this many records.", low=1
    )
    retention_ms: int = limit(
        7 * DAY_MS,
        "With delete: drop sealed segments whose newest record is older than this. -1: no limit.",
    )
    retention_bytes: int = limit(
        KEEP_ALL,
        "With delete: drop the oldest sealed segments above this total size. -1: no limit.",
    )
    retention_hard_bytes: int = limit(
        KEEP_ALL,
        "Drop the oldest sealed segments above this total size even if a registered reader has "
        "not passed them; reported as data loss. -1: no limit.",
    )
    retention_hard_ms: int = limit(
        KEEP_ALL,
        "Drop sealed segments whose newest record is older than this even if a registered reader "
        "has not passed them; reported as data loss. -1: no limit.",
    )
    archive_required: bool = setting(
        False,
        "Keep sealed segments until they are in an archive bundle that was read back and verified.",
    )
    archive_verified_by: str = setting(
        "broker",
        "With archive.required: who must have verified a bundle before its segments are dropped: "
        "broker (this broker reads it in the archive) or job (the archive job is trusted, for "
        "archives that the broker cannot reach).",
        choices=("broker", "job"),
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5, "Compact when more than this share of the log is dirty.", low=0, high=1
    )
    min_compaction_lag_ms: int = setting(0, "Records younger than this are not compacted.", low=0)
    max_compaction_lag_ms: int = limit(
        KEEP_ALL,
        "Records older than this are compacted regardless of the dirty ratio.",
        low=1,
        no_limit=LONG_MAX,
    )
    delete_retention_ms: int = setting(
        DAY_MS, "How long a tombstone is kept after the first compaction that processed it.", low=0
    )
    max_message_bytes: int = setting(
        MIB + 12,
        "The largest batch a producer may send, measured after compression.",
        low=0,
        high=2**31 - 1,
    )
    message_timestamp_type: str = setting(
        "CreateTime",
        "Whose clock sets record timestamps: the producer's, or the broker's at the append.",
        choices=("CreateTime", "LogAppendTime"),
    )
    message_timestamp_before_max_ms: int = limit(
        KEEP_ALL,
        "Reject records whose timestamp is older than this.",
        no_limit=LONG_MAX,
    )
    message_timestamp_after_max_ms: int = limit(
        KEEP_ALL,
        "Reject records whose timestamp is this far ahead of the broker's clock.",
        no_limit=LONG_MAX,
    )
    compression_type: str = setting(
        "producer",
        "The codec of sealed segments. Batches are stored as they arrive; once their segment is "
        "sealed, the broker rewrites it in this codec in the background. producer keeps the codec "
        "of each batch.",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    )
    compression_delay_ms: int = setting(
        MINUTE_MS,
        "How long a segment stays as it is after it was sealed, before compression.type applies.",
        low=0,
    )
    compression_gzip_level: int = setting(
        GZIP_DEFAULT_LEVEL,
        "The level of gzip in segments that the broker or compaction rewrites: 1 (fast) to 9 "
        "(small), or -1.",
        low=-1,
        high=9,
        check=_check_gzip_level,
    )
    compression_lz4_level: int = setting(
        9,
        "The level of lz4 in segments that the broker or compaction rewrites: 1 to 17. 9 is the "
        "fast compressor, as in Kafka; any other is the thorough one.",
        low=1,
        high=17,
    )
    compression_zstd_level: int = setting(
        3,
        "The level of zstd in segments that the broker or compaction rewrites: up to 22 (small).",
        low=-131072,
        high=22,
    )
    min_insync_replicas: int = setting(
        1,
        "Refuse records sent with acks=all when fewer replicas than this are in sync. This broker "
        "is the only replica, so more than 1 refuses all of them (NOT_ENOUGH_REPLICAS).",
        low=1,
        high=2**31 - 1,
    )
    flush_messages: int = limit(
        KEEP_ALL,
        "Where an append counts as durable in the page cache (flush.mode): sync the log once this "
        "many records are not synced, before the append is acknowledged.",
        low=1,
        no_limit=LONG_MAX,
    )
    flush_ms: int = limit(
        KEEP_ALL,
        "Where an append counts as durable in the page cache (flush.mode): sync the log when a "
        "record has not been synced for this long; checked at every append and every "
        "monitor.interval.ms.",
        no_limit=LONG_MAX,
    )
    preallocate: bool = setting(
        False,
        "Reserve segment.bytes of disk space for a new segment. The file's length is not "
        "changed, and what is left over is freed when the segment is sealed.",
    )
    flush_mode: str = setting(
        "broker",
        "When an append counts as durable: fsync (on the device), os (in the page cache), or "
        "broker (the broker's own durability setting).",
        choices=("broker", "fsync", "os"),
    )
    index_interval_bytes: int = setting(
        4096, "Bytes between two entries of the sparse index.", low=0
    )
    producer_id_expiration_ms: int = setting(
        7 * DAY_MS,
        "Forget the sequence numbers of a producer that was idle for this long, in no transaction.",
        low=1,
    )
    file_delete_delay_ms: int = setting(
        MINUTE_MS,
        "How long a dropped or replaced file stays on disk for readers that already use it.",
        low=0,
    )
    unclean_leader_election_enable: bool = setting(
        False, "No effect: there is one replica, so no leader is elected."
    )
    leader_replication_throttled_replicas: frozenset[str] = setting(
        frozenset(),
        "No effect: nothing is replicated. A list of partition:broker, or *.",
        check=_check_replicas,
    )
    follower_replication_throttled_replicas: frozenset[str] = setting(
        frozenset(),
        "No effect: nothing is replicated. A list of partition:broker, or *.",
        check=_check_replicas,
    )
    remote_storage_enable: bool = setting(
        False,
        "Tiered storage is not supported: true is refused. archive.required keeps records until "
        "they are in an archive.",
        check=lambda enabled: _NO_TIERS if enabled else "",
    )
    remote_log_copy_disable: bool = setting(
        False, "No effect: there is no tiered storage to copy to."
    )
    remote_log_delete_on_disable: bool = setting(
        False, "No effect: there is no tiered storage to delete from."
    )
    local_retention_ms: int = setting(
        -2, "No effect: without tiered storage, retention.ms applies to all segments.", low=-2
    )
    local_retention_bytes: int = setting(
        -2, "No effect: without tiered storage, retention.bytes applies to all segments.", low=-2
    )


def find_conflict(config: TopicConfig) -> str:
    """Why no topic may have these settings together, as Kafka refuses it; empty if it may."""
    least, most = config.min_compaction_lag_ms, config.max_compaction_lag_ms
    if least > most:
        return f"min.compaction.lag.ms ({least}) is above max.compaction.lag.ms ({most})"
    return ""


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """The settings of a topic that sets none, and the names of those that the operator chose."""

    config: TopicConfig = TopicConfig()
    chosen: frozenset[str] = frozenset()
    sources: Mapping[str, str] = field(default_factory=dict)  # where each was chosen, if known
