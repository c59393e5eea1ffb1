"""``cordwood pipeline``: run the Spark jobs behind the log, or show their state."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

import typer

from cordwood.cli.options.arguments import (
    DEFAULT_BROKER,
    BrokerOption,
    FormatOption,
    YesOption,
    command_group,
    confirm,
    parse_settings,
)
from cordwood.cli.options.spark_options import ConfOption, MasterOption
from cordwood.cli.output.row_printer import Format, show
from cordwood.decide.routing import ROUTER
from cordwood.plural import plural
from cordwood.protocol.api.deliveries import DeliveryRow, GiveUpDelivery, ListDeliveries
from cordwood.protocol.api.readers import ListReaders
from cordwood.protocol.api.status import GetPipeline

app = command_group("The Spark pipeline: routing, compaction and delivery.")


@app.command()
def run(
    broker: BrokerOption = DEFAULT_BROKER,
    master: MasterOption = None,
    conf: ConfOption = None,
    remote: Annotated[
        str | None, typer.Option(help="A Spark Connect server, sc://host:port.", metavar="URL")
    ] = None,
    jobs: Annotated[
        str,
        typer.Option(help="Which jobs to run, comma separated. [default: all]", metavar="NAMES"),
    ] = "",
    http: Annotated[
        str,
        typer.Option(
            help="The broker's HTTP address, HOST:PORT or https://HOST:PORT. [default: asked of "
            "the broker]",
            metavar="ADDRESS",
            show_default=False,
        ),
    ] = "",
    lifeline: Annotated[
        bool, typer.Option("--lifeline", help="Exit when stdin is closed; for supervisors.")
    ] = False,
) -> None:
    """Run the pipeline in the foreground, embedded or on a cluster.

    Prints READY when its streams are open. It keeps no state: stop it at any time, and run it again
    anywhere.
    """
    import logging
    from contextlib import nullcontext

    from cordwood.cli.options.spark_options import job_address, ungreeted
    from cordwood.pipeline.runtime.runner import (
        SETTINGS,
        STARTING,
        Context,
        follow_lifeline,
        parse_jobs,
        run_pipeline,
    )
    from cordwood.pipeline.runtime.session import open_session

    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)-7s %(name)s %(message)s",
    )
    logging.getLogger("py4j").setLevel(logging.ERROR)
    wanted = parse_jobs(jobs)
    if lifeline:
        follow_lifeline()
    settings = {**SETTINGS, **({} if remote else STARTING), **parse_settings(conf or [])}
    with nullcontext() if lifeline else ungreeted():  # a supervisor keeps all output
        spark = open_session("cordwood pipeline", master=master, conf=settings, remote=remote)
    where = job_address(broker, remote or master)
    run_pipeline(Context(spark, replace(where, http=http or None)), wanted)


@app.command()
def status(broker: BrokerOption = DEFAULT_BROKER, form: FormatOption = Format.TABLE) -> None:
    """Show the state of the embedded pipeline, and the lag of its jobs."""
    from cordwood.cli.options.connect import http_client

    client = http_client(broker)
    report = client.call(GetPipeline())
    readers = client.call(ListReaders()).readers
    row = {
        "state": report.state,
        "pid": report.pid,
        "restarts": report.restarts,
        "route_lag": sum(each.lag for each in readers if each.reader == ROUTER),
        "detail": report.detail,
    }
    show([row if form is Format.TABLE else {**row, "jobs": report.jobs}], form)


@app.command()
def deliveries(broker: BrokerOption = DEFAULT_BROKER, form: FormatOption = Format.TABLE) -> None:
    """Show the last batch of each query, and what blocks one that cannot be finished."""
    from cordwood.cli.options.connect import http_client

    found = http_client(broker).call(ListDeliveries()).deliveries
    rows = [
        {
            "query": name,
            "batch": row.batch,
            "state": _state(row),
            "topics": ", ".join(row.topics),
            "detail": row.quarantined or "",
        }
        for name, row in sorted(found.items())
    ]
    show(rows, form, empty="no deliveries yet; each query has a row after its first batch")


@app.command()
def discard(
    query: Annotated[str, typer.Argument(help="The query, as listed by `pipeline deliveries`.")],
    yes: YesOption = False,
    broker: BrokerOption = DEFAULT_BROKER,
    form: FormatOption = Format.TABLE,
) -> None:
    """Give up the missing part of a query's delivery, so that the query can continue.

    Stored records stay, cursors move as the delivery requested, and the missing records are
    printed, counted and logged.
    """
    from cordwood.cli.options.connect import http_client

    confirm(f"Give up the missing records of query {query}?", yes=yes)
    lost = http_client(broker).call(GiveUpDelivery(query)).discarded
    show([{"partition": name, "discarded": count} for name, count in lost.items()], form)
    total = plural(sum(lost.values()), "record")
    typer.echo(f"gave up {total} of query {query}; it continues with its next batch", err=True)


def _state(row: DeliveryRow) -> str:
    if row.quarantined:
        return "quarantined"
    return "done" if row.done else "under way"
