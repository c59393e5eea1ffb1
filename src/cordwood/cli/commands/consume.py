"""``cordwood consume`` and ``cordwood tail``: print records, for people and pipes."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.cli.options.arguments import (
    DEFAULT_BROKER,
    BrokerOption,
    complete_topics,
)
from cordwood.cli.options.offset_spec import OffsetSpec, find_place, parse_span
from cordwood.cli.output.progress import ProgressBar, QuietOption, progress
from cordwood.cli.output.record_format import compile_format
from cordwood.cli.output.record_json import encode_json
from cordwood.errors import UnknownTopic
from cordwood.model import Record, TopicPartition

if TYPE_CHECKING:
    from cordwood.client.kafka import KafkaClient

DEFAULT_FORMAT = r"%v\n"
WAIT_MS = 500

Topics = Annotated[
    list[str],
    typer.Argument(help="One or more topics.", metavar="TOPIC", autocompletion=complete_topics),
]
JsonOption = Annotated[
    bool,
    typer.Option("-J", "--json", help="Print one JSON object per line, as `produce -J` reads it."),
]


def consume(
    topics: Topics,
    offset: Annotated[
        str,
        typer.Option("-o", "--offset", help="start, end, N, -N, @time or @t1:t2.", metavar="WHERE"),
    ] = "start",
    count: Annotated[
        int | None, typer.Option("-n", "--num", min=1, help="Stop after this many records.")
    ] = None,
    exit_at_end: Annotated[
        bool, typer.Option("-e", "--exit", help="Stop at the end of the topic.")
    ] = False,
    partition: Annotated[
        list[int] | None,
        typer.Option("-p", "--partition", help="Only this partition; repeat for more."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "-g", "--group", help="Start at this consumer group's committed offset, and commit."
        ),
    ] = None,
    committed: Annotated[
        bool, typer.Option("--read-committed", help="Skip records of aborted transactions.")
    ] = False,
    form: Annotated[
        str,
        typer.Option(
            "-f", "--record-format", help="Output format with % fields.", metavar="FORMAT"
        ),
    ] = DEFAULT_FORMAT,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    broker: BrokerOption = DEFAULT_BROKER,
) -> None:
    """Print records.

    Formats: %t topic, %p partition, %o offset, %k key, %v value, %h headers, %T time in ms,
    %d time as ISO 8601, %K %V sizes; %v{hex}, %v{base64}.
    """
    from cordwood.cli.options.connect import kafka_client

    encode = encode_json if as_json else compile_format(form)
    first, last = parse_span(offset)
    with kafka_client(broker) as client:
        wanted = [tp for topic in topics for tp in _partitions(client, topic, partition)]
        positions = _starts(client, wanted, first, group)
        ends = _ends(client, wanted, last, exit_at_end=exit_at_end)
        total = _total(positions, ends, count)
        quiet = quiet or total is None or sys.stdout.isatty()  # there the records show the progress
        runs = _runs(client, positions, ends, committed=committed)
        with progress("from " + " ".join(topics), total=total, quiet=quiet) as bar:
            _print(runs, encode, positions, count, bar)
        if group is not None:
            client.commit(group, positions)


def tail(
    topics: Topics,
    lines: Annotated[
        int,
        typer.Option("-n", "--lines", min=0, help="How many records of each partition to print."),
    ] = 10,
    follow: Annotated[
        bool, typer.Option("-f", "-F", "--follow", help="Print new records until Ctrl-C.")
    ] = False,
    form: Annotated[
        str,
        typer.Option(
            "--record-format",
            help="Output format with % fields; see `cordwood consume -h`.",
            metavar="FORMAT",
        ),
    ] = DEFAULT_FORMAT,
    as_json: JsonOption = False,
    broker: BrokerOption = DEFAULT_BROKER,
) -> None:
    """Print the last records of each partition; with -f also new ones, as they arrive."""
    consume(
        topics,
        offset=f"-{lines}",
        exit_at_end=not follow,
        form=form,
        as_json=as_json,
        broker=broker,
    )


def _partitions(client: KafkaClient, topic: str, only: list[int] | None) -> list[TopicPartition]:
    """Return a topic's partitions, or the requested ones."""
    there = client.partitions(topic)
    wanted = [TopicPartition(topic, number) for number in only] if only else there
    for tp in wanted:
        if tp not in there:
            raise UnknownTopic(
                f"topic {topic} has no partition {tp.partition}, only 0 to {len(there) - 1}"
            )
    return wanted


def _starts(
    client: KafkaClient, wanted: list[TopicPartition], first: OffsetSpec, group: str | None
) -> dict[TopicPartition, int]:
    cursors = {c.partition: c.offset for c in client.committed(group)} if group else {}
    return {tp: cursors[tp] if tp in cursors else find_place(client, tp, first) for tp in wanted}


def _ends(
    client: KafkaClient, wanted: list[TopicPartition], last: OffsetSpec | None, *, exit_at_end: bool
) -> dict[TopicPartition, int] | None:
    """Return where to stop on each partition; None means never."""
    from cordwood.client.kafka import LATEST

    if last is not None:
        return {tp: find_place(client, tp, last) for tp in wanted}
    if exit_at_end:
        return {tp: client.offset(tp, LATEST) or 0 for tp in wanted}
    return None


def _total(
    positions: dict[TopicPartition, int], ends: dict[TopicPartition, int] | None, count: int | None
) -> int | None:
    """Return how many records will be printed at most; None if unknown."""
    if ends is None:
        return count
    left = sum(max(end - positions[tp], 0) for tp, end in ends.items())
    return left if count is None else min(left, count)


def _runs(
    client: KafkaClient,
    positions: dict[TopicPartition, int],
    ends: dict[TopicPartition, int] | None,
    *,
    committed: bool,
) -> Iterator[tuple[TopicPartition, list[Record]]]:
    """Yield the records of each reply per partition; moves ``positions`` past them."""
    from cordwood.batch.header import parse_headers
    from cordwood.batch.records import decode_committed

    while True:
        wanted = {tp: at for tp, at in positions.items() if ends is None or at < ends[tp]}
        if not wanted:
            return
        found = client.fetch(wanted, max_wait_ms=WAIT_MS, committed=committed)
        for tp, part in found.items():
            aborted = [(a.producer_id, a.first_offset) for a in part.aborted_transactions or ()]
            data = part.records or b""
            end = part.high_watermark if ends is None else ends[tp]
            run = [
                record
                for record in decode_committed(data, aborted)
                if positions[tp] <= record.offset < end
            ]
            reached = max((header.end_offset for header in parse_headers(data)), default=0)
            if not data and ends is not None and part.high_watermark >= ends[tp]:
                reached = ends[tp]  # only a gap remains up to the end
            yield tp, run
            positions[tp] = max(positions[tp], reached)


def _print(
    runs: Iterator[tuple[TopicPartition, list[Record]]],
    encode: Callable[[TopicPartition, Record], bytes],
    positions: dict[TopicPartition, int],
    count: int | None,
    bar: ProgressBar,
) -> None:
    """Flush after each reply, so that a reader of the pipe has it immediately."""
    out = sys.stdout.buffer
    left = sys.maxsize if count is None else count
    for tp, run in runs:
        taken = run[:left]
        out.write(b"".join(encode(tp, record) for record in taken))
        out.flush()
        left -= len(taken)
        bar.advance(len(taken))
        if taken:
            positions[tp] = taken[-1].offset + 1
        if left == 0 or _is_reader_gone():
            return


def _is_reader_gone() -> bool:
    """Whether the reader of our pipe has closed it; without records no write would show it."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
