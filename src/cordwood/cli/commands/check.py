"""``cordwood check``: the health of the broker, as an exit code and a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer

from cordwood.cli.options.arguments import (
    DEFAULT_BROKER,
    BrokerOption,
    FormatOption,
    size_in_bytes,
)
from cordwood.cli.output.held_text import held_text
from cordwood.cli.output.row_printer import Format, show
from cordwood.plural import plural
from cordwood.protocol.api.readers import GroupRow, ListGroups, ListReaders, ReaderRow
from cordwood.protocol.api.status import GetHealth, Health
from cordwood.protocol.api.topics import HeldSegments, ListHeld

PROBLEMS = 5


def check(
    lag: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="RECORDS",
            help="A reader or group further behind than this many records is a problem.",
        ),
    ] = None,
    held: Annotated[
        int | None,
        typer.Option(
            parser=size_in_bytes,
            metavar="SIZE",
            help="A reader, or the lack of one, that keeps more bytes than this from being "
            "reclaimed is a problem.",
        ),
    ] = None,
    broker: BrokerOption = DEFAULT_BROKER,
    form: FormatOption = Format.TABLE,
) -> None:
    """Exit 0 if everything is served, 5 if something is wrong, 6 if no broker answers."""
    from cordwood.cli.options.connect import http_client

    http = http_client(broker)
    readers = http.call(ListReaders()).readers
    registered = {(row.reader, row.topic) for row in readers}
    rows = [
        *_readiness(http.call(GetHealth())),
        *_readers(readers, lag, held),
        *_kept(http.call(ListHeld()).held, held),
        *_groups(http.call(ListGroups()).groups, registered, lag),
    ]
    show(rows, form)
    if any(row["state"] != "ok" for row in rows):
        raise typer.Exit(PROBLEMS)


def _readiness(health: Health) -> list[dict[str, Any]]:
    """One row per condition; except ready, pipeline and accepted damage, a set one is a problem."""
    rows = [_row("broker", "ok" if health.ready else "problem", "")]
    for name, fact in msgspec.structs.asdict(health).items():
        if name == "pipeline":
            rows.append(_row("pipeline", "ok", str(fact)))
        elif name == "data_directory":
            rows.append(_row(name, *(("ok", "") if fact == "ok" else ("problem", str(fact)))))
        elif name == "damage_accepted":
            rows.append(_row(name, "ok", "; ".join(f"{what}: {why}" for what, why in fact.items())))
        elif isinstance(fact, dict) and fact:
            rows += [_row(name, "problem", f"{what}: {why}") for what, why in fact.items()]
        elif name != "ready":
            rows.append(_row(name, "problem" if fact else "ok", str(fact) if fact else ""))
    return rows


def _readers(
    readers: Sequence[ReaderRow], lag: int | None, held: int | None
) -> list[dict[str, Any]]:
    rows = []
    for row in readers:
        is_late = lag is not None and row.lag > lag
        is_holding = held is not None and row.held_bytes > held
        where = f"{row.reader} on {row.topic}-{row.partition}"
        about = f"{plural(row.lag, 'record')} behind, holds {plural(row.held_bytes, 'byte')}"
        rows.append(_row(where, "problem" if is_late or is_holding else "ok", about))
    return rows


def _kept(segments: Sequence[HeldSegments], most: int | None) -> list[dict[str, Any]]:
    """One row per partition that keeps segments for no reader; readers have their own rows."""
    return [
        _row(
            f"{each.topic}-{each.partition}",
            "problem" if most is not None and each.size_bytes > most else "ok",
            held_text(each),
        )
        for each in segments
        if each.holder == "no_reader"
    ]


def _groups(
    groups: Sequence[GroupRow], registered: set[tuple[str, str]], lag: int | None
) -> list[dict[str, Any]]:
    """One row per group and topic; registered readers have their own rows."""
    behind: dict[tuple[str, str], int] = {}
    for row in groups:
        where = row.group, row.topic
        if where not in registered and row.lag is not None:
            behind[where] = behind.get(where, 0) + row.lag
    return [
        _row(
            f"{group} on {topic}",
            "problem" if lag is not None and records > lag else "ok",
            f"{plural(records, 'record')} behind",
        )
        for (group, topic), records in behind.items()
    ]


def _row(what: str, state: str, about: str) -> dict[str, Any]:
    return {"check": what, "state": state, "about": about}
