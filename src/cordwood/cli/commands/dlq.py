"""``cordwood dlq``: inspect dead letters, and replay them repaired."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from cordwood.cli.options.arguments import (
    DEFAULT_BROKER,
    BrokerOption,
    FormatOption,
    command_group,
    complete_topics,
)
from cordwood.cli.options.spark_options import ConfOption, MasterOption
from cordwood.cli.options.tls import BrokerTarget
from cordwood.cli.output.progress import QuietOption, progress
from cordwood.cli.output.row_printer import Format, format_time, show
from cordwood.decide.deadletters import Cause, group_of, parse_cause
from cordwood.model import Record, TopicPartition
from cordwood.plural import plural
from cordwood.protocol.api.deliveries import ListReplays
from cordwood.protocol.api.status import GetBrokerStatus

app = command_group("Dead letters: count, look, replay.")

FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        help="The topic to look at. [default: the broker's dead-letter topic]",
        autocompletion=complete_topics,
    ),
]
NONE = "no dead letters"
_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:/s)?")


@app.command("ls")
def list_letters(
    topic: FromOption = None,
    broker: BrokerOption = DEFAULT_BROKER,
    form: FormatOption = Format.TABLE,
) -> None:
    """Count dead letters by reason and by the topic they came from."""
    groups: dict[tuple[str, str], list[int]] = {}
    for _, record, cause in _letters(broker, topic):
        where = group_of(cause)
        groups.setdefault(where, []).append(record.timestamp_ms)
    rows = [
        {
            "reason": reason,
            "topic": origin,
            "letters": len(times),
            "first": format_time(min(times)),
            "last": format_time(max(times)),
        }
        for (reason, origin), times in sorted(groups.items(), key=lambda each: -len(each[1]))
    ]
    show(rows, form, empty=NONE)


@app.command()
def sample(
    count: Annotated[int, typer.Option("-n", "--num", min=1, help="How many.")] = 10,
    reason: Annotated[str | None, typer.Option(help="Only those with this reason.")] = None,
    topic: FromOption = None,
    broker: BrokerOption = DEFAULT_BROKER,
    form: FormatOption = Format.TABLE,
) -> None:
    """Show the newest dead letters, with the reason and origin of each."""
    from collections import deque

    found = (
        {
            "partition": tp.partition,
            "offset": record.offset,
            "time": format_time(record.timestamp_ms),
            "reason": cause.reason,
            "detail": cause.detail,
            "source": cause.source or _place(cause),
            "key": _text(record.key),
            "value": _text(record.value),
        }
        for tp, record, cause in _letters(broker, topic)
        if reason is None or cause.reason == reason
    )
    wanted = NONE if reason is None else f"no dead letters with reason {reason}"
    show(list(deque(found, maxlen=count)), form, empty=wanted)


@app.command()
def replay(
    where: Annotated[
        str | None,
        typer.Option(
            "--where", help="Which dead letters to replay, as an SQL condition.", metavar="SQL"
        ),
    ] = None,
    set_key: Annotated[
        str | None, typer.Option(help="The new key, as an SQL expression.", metavar="SQL")
    ] = None,
    set_value: Annotated[
        str | None, typer.Option(help="The new value, as an SQL expression.", metavar="SQL")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            help="The topic to append to. [default: the ingress topic, so that they are routed "
            "again]",
            metavar="TOPIC",
            autocompletion=complete_topics,
        ),
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help="The most records per second.", metavar="N/s")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be sent, without sending it.")
    ] = False,
    name: Annotated[
        str,
        typer.Option(
            help="The replay's name; under a new name, an identical replay is sent again."
        ),
    ] = "",
    topic: FromOption = None,
    broker: BrokerOption = DEFAULT_BROKER,
    master: MasterOption = None,
    conf: ConfOption = None,
    form: FormatOption = Format.TABLE,
    quiet: QuietOption = False,
) -> None:
    """Replay dead letters, each once; the dead letters themselves stay.

    Expressions may name key_text, value_text, reason, detail, source, source_topic,
    source_partition, source_offset, and the record's own columns.
    """
    from cordwood.cli.options.spark_options import broker_context, spark_session
    from cordwood.pipeline.replay import Replay, preview, run_replay
    from cordwood.pipeline.runtime.job_labels import labelled

    most = _parse_rate(rate)
    with broker_context(broker, master=master) as api:
        status = api.status()
        job = Replay(
            topic=topic or status.dead_letter_topic,
            to=to or status.ingress_topic,
            where=where,
            set_key=set_key,
            set_value=set_value,
            name=name,
        )
        api.topic(job.topic)  # reports a missing topic before Spark starts
        with spark_session("replay", master, conf) as spark:
            if dry_run:
                with labelled(spark, f"dry run, {job.topic} to {job.to}"):
                    _show_preview(preview(spark, api, job), job, form)
                return
            with progress(f"replaying {job.topic}", unit="letters", quiet=quiet) as bar:
                outcome = run_replay(spark, api, job, rate=most, watch=bar.watch)
    show([{"replay": outcome.id, "scanned": outcome.scanned, "replayed": outcome.replayed}], form)
    typer.echo(
        f"{outcome.replayed} of {plural(outcome.scanned, 'letter')} sent to {job.to}", err=True
    )


@app.command()
def replays(broker: BrokerOption = DEFAULT_BROKER, form: FormatOption = Format.TABLE) -> None:
    """List every replay: what it did, and its progress."""
    from cordwood.cli.options.connect import http_client

    rows = http_client(broker).call(ListReplays()).replays
    names = ("id", "state", "topic", "to", "where", "set_key", "set_value", "name")
    numbers = ("scanned", "records", "started", "updated")
    show(
        [{name: getattr(row, name) for name in (*names, *numbers)} for row in rows],
        form,
        empty="no replays yet; start one with `cordwood dlq replay`",
    )


def _show_preview(frame: Any, job: Any, form: Format) -> None:
    from cordwood.pipeline.replay import run_expressions

    rows = [row.asDict() for row in run_expressions(frame.limit(20).collect)]
    show(rows, form)
    total = run_expressions(frame.count)
    typer.echo(f"dry run: {plural(total, 'letter')} would be sent to {job.to}", err=True)


def _letters(
    broker: BrokerTarget, topic: str | None
) -> Iterator[tuple[TopicPartition, Record, Cause]]:
    """Yield every dead letter from the first to the last that exist now; read without Spark."""
    from cordwood.batch.header import parse_headers
    from cordwood.batch.records import decode_committed
    from cordwood.cli.options.connect import http_client, kafka_client
    from cordwood.client.kafka import EARLIEST, LATEST

    wanted = topic
    if wanted is None:
        wanted = http_client(broker).call(GetBrokerStatus()).dead_letter_topic
    with kafka_client(broker) as client:
        if topic is None and wanted not in {each.name for each in client.topics()}:
            return  # the topic is created with the first dead letter: there are none
        for tp in client.partitions(wanted):
            offset, end = client.offset(tp, EARLIEST) or 0, client.offset(tp, LATEST) or 0
            while offset < end:
                part = client.fetch({tp: offset}, max_wait_ms=0, committed=True)[tp]
                data = bytes(part.records or b"")
                if not data:
                    break
                aborted = [(a.producer_id, a.first_offset) for a in part.aborted_transactions or ()]
                for record in decode_committed(data, aborted):
                    if offset <= record.offset < end:
                        yield tp, record, parse_cause(record.headers)
                offset = max(offset, parse_headers(data)[-1].end_offset)


def _parse_rate(text: str | None) -> float | None:
    if text is None:
        return None
    match = _RATE.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        raise typer.BadParameter(
            f"{text!r} is not a rate; use for example 100/s", param_hint="--rate"
        )
    return float(match[1])


def _place(cause: Cause) -> str | None:
    return None if cause.topic is None else f"{cause.topic}-{cause.partition}:{cause.offset}"


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")
