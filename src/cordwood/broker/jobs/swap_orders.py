"""Compaction orders: what the broker allows a job to replace, and the check of its result.

A swap needs an order: an unguessable token that covers one partition of one topic id, certain
segments with their sha256, a point in time and the topic's settings, until the order ends.
``verify_pass`` checks the staged segments of a pass against the order and, through
``log.lifecycle.compaction_proof``, against the log. These functions block while they read the whole
range once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cordwood.config import TopicConfig
from cordwood.errors import InvalidManifest, PolicyViolation, StaleManifest
from cordwood.log.format.layout import FileKind
from cordwood.log.format.manifest import Manifest, StagedSegment
from cordwood.log.lifecycle.compaction_proof import PassRules, Proof, Stretch, prove_pass
from cordwood.log.lifecycle.store import Store
from cordwood.log.swap.ladder import Verified
from cordwood.model import Aborted, Codec, SegmentInfo, TopicPartition

TXNINDEX_BYTES_MAX = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapOrder:
    """The segments that one job may replace, and the rules for it."""

    token: str
    until_ms: int  # when the order ends, in the clock's milliseconds; the job renews it
    tp: TopicPartition
    topic_id: str
    segments: tuple[SegmentInfo, ...]
    hashes: Mapping[int, str]  # sha256 of every segment's log file, by base offset
    bound: int
    now_ms: int
    delete_retention_ms: int
    passed_end: int  # offset of the slowest registered reader when the order was given
    codec: Codec | None  # that the topic asks for; None keeps each batch's own
    aborted: tuple[Aborted, ...]
    producers: tuple[tuple[int, int, int], ...]

    def rules(self, passed_end: int) -> PassRules:
        """Return the compaction rules; a reader reset since then counts from its new offset."""
        return PassRules(
            now_ms=self.now_ms,
            delete_retention_ms=self.delete_retention_ms,
            passed_end=min(self.passed_end, passed_end),
            aborted=self.aborted,
            producers=self.producers,
            codecs=None if self.codec is None else frozenset({self.codec.value, Codec.NONE.value}),
        )


def check_policy(order: SwapOrder, topic_id: str, config: TopicConfig, now_ms: int) -> None:
    """Raise unless the topic's id and settings still allow what was ordered."""
    if topic_id != order.topic_id:
        raise StaleManifest(
            f"topic {order.tp.topic} was deleted and created again; run the job again"
        )
    if "compact" not in config.cleanup_policy:
        raise PolicyViolation(
            f"topic {order.tp.topic} is no longer compacted; nothing was replaced"
        )
    lag_ms = config.min_compaction_lag_ms
    if lag_ms and any(info.newest_ms > now_ms - lag_ms for info in order.segments):
        raise StaleManifest(
            f"{order.tp}: a record is younger than min.compaction.lag.ms, which was raised in the "
            "meantime; run the job again"
        )


def verify_pass(
    store: Store, order: SwapOrder, jobs: Sequence[str], passed_end: int
) -> tuple[list[Verified], Proof]:
    """Read what a pass staged and the log it was made from; raises if anything is wrong."""
    verified: list[Verified] = []
    try:
        for job in jobs:
            verified.append(store.segments.verify_job(job))  # noqa: PERF401 - those before are released
        return verified, _prove(store, order, verified, passed_end)
    except BaseException:
        store.segments.release_jobs(verified)
        raise


def _prove(store: Store, order: SwapOrder, verified: Sequence[Verified], passed_end: int) -> Proof:
    for each in verified:
        check_manifest(order, each.manifest)
    stretches = plan_stretches(order, verified)
    directory = store.partition(order.tp).directory
    return prove_pass(directory, order.rules(passed_end), stretches)


def check_manifest(order: SwapOrder, manifest: Manifest) -> None:
    """Raise unless the manifest replaces only ordered segments, with the ordered sha256."""
    if (manifest.topic_partition, manifest.topic_id) != (order.tp, order.topic_id):
        raise InvalidManifest(
            f"job {manifest.job} is for another partition than the ordered {order.tp}"
        )
    ordered = {info.base_offset: info for info in order.segments}
    for replaced in manifest.replaces:
        info = ordered.get(replaced.base_offset)
        if info is None:
            raise InvalidManifest(
                f"job {manifest.job} replaces segment {replaced.base_offset} of {order.tp}, which "
                "is not in its order"
            )
        if replaced.sha256 is None or replaced.sha256 != order.hashes.get(replaced.base_offset):
            raise InvalidManifest(
                f"job {manifest.job} states a different sha256 for segment {replaced.base_offset} "
                f"of {order.tp} than its order, or none"
            )
    for segment in manifest.segments:
        kinds = {FileKind.LOG.value, FileKind.TXNINDEX.value}
        if any("." + file.name.partition(".")[2] not in kinds for file in segment.files):
            raise InvalidManifest(
                f"job {manifest.job} stages an index file; the broker builds its own"
            )


def plan_stretches(order: SwapOrder, verified: Sequence[Verified]) -> list[Stretch]:
    """Return the order's segments, lowest first, each run with the file that replaces it."""
    staged: dict[int, tuple[Path, StagedSegment]] = {}
    for job in verified:
        for segment in job.manifest.segments:
            if segment.base_offset in staged:
                raise InvalidManifest(f"two jobs replace segment {segment.base_offset}")
            staged[segment.base_offset] = job.directory, segment
    replaced = {each.base_offset for job in verified for each in job.manifest.replaces}
    stretches: list[Stretch] = []
    left = list(order.segments)
    while left:
        base = left[0].base_offset
        if base not in staged:
            if base in replaced:
                raise InvalidManifest(f"segment {base} of {order.tp} has no replacement")
            stretches.append(Stretch((left.pop(0),), None))
            continue
        directory, segment = staged.pop(base)
        live = tuple(info for info in left if info.base_offset < segment.end_offset)
        if live[-1].end_offset != segment.end_offset:
            raise InvalidManifest(f"{segment.log.name} ends inside a segment of {order.tp}")
        left = left[len(live) :]
        index = segment.file(FileKind.TXNINDEX)
        if index and index.size_bytes > TXNINDEX_BYTES_MAX:
            raise InvalidManifest(f"{index.name} has more than {TXNINDEX_BYTES_MAX} bytes")
        text = (directory / index.name).read_bytes() if index else b""
        stretches.append(Stretch(live, directory / segment.log.name, text))
    if staged:
        raise InvalidManifest(f"segments {sorted(staged)} replace no segment of the order")
    return stretches
