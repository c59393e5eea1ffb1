"""``cordwood table``: the latest state per key of a topic, as Parquet or Delta."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from cordwood.cli.options.arguments import DEFAULT_BROKER, BrokerOption, complete_topics
from cordwood.cli.options.spark_options import ConfOption, MasterOption
from cordwood.cli.output.progress import QuietOption, progress
from cordwood.plural import plural


class TableFormat(StrEnum):
    """The storage format of a table."""

    PARQUET = "parquet"
    DELTA = "delta"


def table(
    topic: Annotated[
        str,
        typer.Argument(
            help="A changelog topic: its records have keys.", autocompletion=complete_topics
        ),
    ],
    out: Annotated[
        str,
        typer.Option(
            "--out",
            help="The table's directory, created if missing, or an object-store URL.",
            metavar="PATH-OR-URL",
        ),
    ],
    form: Annotated[TableFormat, typer.Option("--format", help="The table's file format.")] = (
        TableFormat.PARQUET
    ),
    as_of: Annotated[
        str | None,
        typer.Option(help="The state at a time, or before an offset.", metavar="TIME|OFFSET"),
    ] = None,
    broker: BrokerOption = DEFAULT_BROKER,
    master: MasterOption = None,
    conf: ConfOption = None,
    quiet: QuietOption = False,
) -> None:
    """Write the newest value of every key; a second run reads only what is new.

    With --format parquet the table is OUT/current. Deleted keys are left out.
    """
    from cordwood.cli.options.offset_spec import parse_time
    from cordwood.cli.options.spark_options import broker_context, spark_session
    from cordwood.pipeline.table import TableRequest, build_table

    is_offset = as_of is not None and as_of.isdecimal()
    request = TableRequest(
        topic=topic,
        out=out,
        form=form.value,
        as_of_offset=int(as_of) if as_of is not None and is_offset else None,
        as_of_ms=parse_time(as_of.removeprefix("@"))
        if as_of is not None and not is_offset
        else None,
    )
    with broker_context(broker, master=master) as api:
        api.topic(topic)  # reports a missing topic before Spark starts
        with (
            spark_session("table", master, conf) as spark,
            progress(f"reading {topic}", quiet=quiet) as bar,
        ):
            built = build_table(spark, api, request, progress=None if quiet else bar.stage)
    typer.echo(built.place)
    how = "merged into the table" if built.is_incremental else "read from the start"
    typer.echo(f"{plural(built.rows, 'key')}; {plural(built.read, 'offset')} {how}", err=True)
