"""``cordwood pipeline``: run the Spark jobs behind the log, or show their state."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cordwood.cli.options.spark_options import ConfOption, MasterOption
from cordwood.cli.output.tables import (
    DEFAULT_BROKER,
    BrokerOption,
    Format,
    FormatOption,
    confirm,
    parse_settings,
    show,
)

app = typer.Typer(
    help="The pipeline: routing and the work on segments, by Spark.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)


@app.command()
def run(
    broker: BrokerOption = DEFAULT_BROKER,
    master: MasterOption = None,
    conf: ConfOption = None,
    remote: Annotated[
        str | None, typer.Option(help="A Spark Connect server, sc://host:port.", metavar="URL")
    ] = None,
    jobs: Annotated[
        str, typer.Option(help="Which jobs, comma separated; without it, all.", metavar="NAMES")
    ] = "",
    lifeline: Annotated[
        bool, typer.Option("--lifeline", help="End when stdin ends; for supervisors.")
    ] = False,
) -> None:
    """Run the pipeline in the foreground, embedded or on a cluster.

    Prints READY when its streams are open. It keeps no state: stop it at any time, and run it again
    anywhere.
    """
    import logging
    from contextlib import nullcontext

    from cordwood.cli.options.spark_options import ungreeted
    from cordwood.pipeline.runtime.broker_api import BrokerAddress
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
    run_pipeline(Context(spark, BrokerAddress(broker)), wanted)


@app.command()
def status(broker: BrokerOption = DEFAULT_BROKER, form: FormatOption = Format.TABLE) -> None:
    """Show the state of the embedded pipeline, and the lag of its jobs."""
    from cordwood.cli.options.connect import http_client

    client = http_client(broker)
    facts = client.get("/api/pipeline")
    lag = sum(row["lag"] for row in client.get("/api/readers")["readers"] if _is_ours(row))
    row = {
        "state": facts["state"],
        "pid": facts["pid"],
        "restarts": facts["restarts"],
        "route_lag": lag,
        "detail": facts["detail"],
    }
    show([row if form is Format.TABLE else {**row, "jobs": facts["jobs"]}], form)


@app.command()
def deliveries(broker: BrokerOption = DEFAULT_BROKER, form: FormatOption = Format.TABLE) -> None:
    """Show the last batch of each query, and what blocks one that cannot be finished."""
    from cordwood.cli.options.connect import http_client

    found = http_client(broker).get("/api/deliveries")["deliveries"]
    rows = [
        {
            "query": name,
            "batch": row.get("batch"),
            "state": _state(row),
            "topics": ", ".join(row.get("topics", ())),
            "detail": row.get("quarantined") or "",
        }
        for name, row in sorted(found.items())
    ]
    show(rows, form)


@app.command()
def discard(
    query: Annotated[str, typer.Argument(help="The query, as `pipeline deliveries` names it.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    form: FormatOption = Format.TABLE,
) -> None:
    """Give up the missing part of a query's delivery, so that the query can continue.

    Stored records stay, cursors move as the delivery requested, and the missing records are
    printed, counted and logged.
    """
    from cordwood.cli.options.connect import http_client

    confirm(f"Give up the records that are missing of query {query}?", yes=yes)
    lost = http_client(broker).delete("/api/deliveries", query=query)["discarded"]
    show([{"partition": name, "discarded": count} for name, count in lost.items()], form)


def _state(row: dict[str, object]) -> str:
    if row.get("quarantined"):
        return "quarantined"
    return "done" if row.get("done") else "under way"


def _is_ours(row: dict[str, object]) -> bool:
    return row["reader"] == "route"
