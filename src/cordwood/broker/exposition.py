"""Renders one scrape: Prometheus's text format for ``/metrics``, JSON for the METRICS command.

There may be a hundred thousand samples. They are rendered one by one, as they are read, in time
slices that yield to the event loop; no single step handles all of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from cordwood.broker.metrics import METRICS, Sample, samples
from cordwood.broker.time_slices import TimeSlice, in_slices
from cordwood.log.write.commit import SYNC_BUCKETS, CommitStats

if TYPE_CHECKING:
    from cordwood.broker.broker import Broker

SYNCS: Final = "cordwood_fsync_seconds"  # the only histogram
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})

Lines = dict[str, list[str]]  # by metric


async def exposition(broker: Broker) -> bytes:
    """Return the metrics in Prometheus's text format."""
    stats = broker.writer.stats
    return await render(samples(broker), stats)


async def render(
    samples: Iterable[Sample | None], stats: CommitStats, turn: TimeSlice | None = None
) -> bytes:
    """Render these samples and the fsync histogram, family by family."""
    # Import on a thread: on the event loop the first scrape would block every connection.
    await asyncio.get_running_loop().run_in_executor(None, import_module, "prometheus_client")
    from prometheus_client.utils import floatToGoString

    turn = turn or TimeSlice()
    families = await _gathered(samples, _with_labels(floatToGoString), turn)
    parts = []
    for name, lines in families.items():
        parts.append("\n".join([_head(name), *lines, ""]).encode())
        if turn.is_over():
            await turn.pass_on()
    return b"".join([*parts, _histogram(stats)])


def _with_labels(number: Callable[[float], str]) -> Callable[[Sample], str]:
    """Return a function that renders a sample; caches labels, which neighbours mostly share."""
    last: Mapping[str, str] = {}
    text = ""

    def line(sample: Sample) -> str:
        nonlocal last, text
        if sample.labels is not last:
            pairs = sorted(sample.labels.items())
            text = ",".join([f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs])
            text = f"{{{text}}}" if text else ""
            last = sample.labels
        return f"{sample.name}{text} {number(sample.value)}"

    return line


async def _gathered(
    samples: Iterable[Sample | None], line: Callable[[Sample], str], turn: TimeSlice
) -> Lines:
    families: Lines = {}
    async for sample in in_slices(samples, turn):
        if sample is not None:
            families.setdefault(sample.name, []).append(line(sample))
    return families


def _head(name: str) -> str:
    row = METRICS[name]
    return f"# HELP {name} {row.doc}\n# TYPE {name} {row.kind}"


def _histogram(stats: CommitStats) -> bytes:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import HistogramMetricFamily

    class Syncs:
        @staticmethod
        def collect() -> list[Any]:
            buckets = _cumulative(stats.sync_buckets)
            doc, total = METRICS[SYNCS].doc, stats.sync_seconds
            return [HistogramMetricFamily(SYNCS, doc, buckets=buckets, sum_value=total)]

    registry = CollectorRegistry()
    registry.register(Syncs())
    return generate_latest(registry)


def _cumulative(counts: list[int]) -> list[tuple[str, float]]:
    """Return cumulative histogram buckets, as Prometheus's format requires."""
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip([*map(str, SYNC_BUCKETS), "+Inf"], list(counts), strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets


async def snapshot(broker: Broker) -> bytes:
    """Return the metrics as one line of JSON."""
    stats = broker.writer.stats
    return await render_json(samples(broker), stats)


async def render_json(
    samples: Iterable[Sample | None], stats: CommitStats, turn: TimeSlice | None = None
) -> bytes:
    """Render a number per metric, or a list of objects with labels for a labelled one."""
    turn = turn or TimeSlice()
    encode = json.JSONEncoder(separators=(",", ":")).encode
    plain: dict[str, str] = {}
    labelled: Lines = {}
    async for sample in in_slices(samples, turn):
        if sample is None:
            continue
        if sample.labels:
            text = encode({**sample.labels, "value": sample.value})
            labelled.setdefault(sample.name, []).append(text)
        else:
            plain[sample.name] = encode(sample.value)
    plain[SYNCS] = encode({"count": stats.syncs, "sum": stats.sync_seconds})
    members = [f'"{name}":{text}'.encode() for name, text in plain.items()]
    for name, texts in labelled.items():
        members.append(f'"{name}":[{",".join(texts)}]'.encode())
        if turn.is_over():
            await turn.pass_on()
    return b"{" + b",".join(members) + b"}"
