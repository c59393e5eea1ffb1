"""The settings of a topic, one row each; the names are Kafka's where Kafka has the setting."""

from __future__ import annotations

from dataclasses import dataclass

from cordwood.settings.rows import DAY_MS, GIB, KEEP_ALL, MIB, MINUTE_MS, limit, setting


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
        KEEP_ALL, "Records older than this are compacted regardless of the dirty ratio.", low=1
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
        KEEP_ALL, "Reject records whose timestamp is older than this. -1: no limit."
    )
    message_timestamp_after_max_ms: int = limit(
        KEEP_ALL,
        "Reject records whose timestamp is this far ahead of the broker's clock. -1: no limit.",
    )
    compression_type: str = setting(
        "producer",
        "The codec of segments that compaction rewrites; producer keeps the codec of each batch.",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
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
