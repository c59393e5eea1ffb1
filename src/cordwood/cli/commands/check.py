"""``cordwood check``: the health of the broker, as an exit code and a table."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cordwood.cli.output.tables import DEFAULT_BROKER, BrokerOption, Format, FormatOption, show

PROBLEMS = 5


def check(
    lag: Annotated[
        int | None,
        typer.Option(
            min=0, help="A reader or group further behind than this many records is a problem."
        ),
    ] = None,
    held: Annotated[
        int | None,
        typer.Option(min=0, help="A reader that holds more bytes back than this is a problem."),
    ] = None,
    broker: BrokerOption = DEFAULT_BROKER,
    form: FormatOption = Format.TABLE,
) -> None:
    """Exit 0 if everything is served, 5 if something is wrong, 6 if no broker answers."""
    from cordwood.cli.options.connect import http_client

    http = http_client(broker)
    readers = http.get("/api/readers")
    rows = [
        *_readiness(http.get("/api/health")),
        *_readers(readers, lag, held),
        *_groups(
            http.get("/api/groups"), {(r["reader"], r["topic"]) for r in readers["readers"]}, lag
        ),
    ]
    show(rows, form)
    if any(row["state"] != "ok" for row in rows):
        raise typer.Exit(PROBLEMS)


def _readiness(health: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per condition; except ready, pipeline and accepted damage, a set one is a problem."""
    rows = [_row("broker", "ok" if health["ready"] else "problem", "")]
    for name, fact in health.items():
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


def _readers(found: dict[str, Any], lag: int | None, held: int | None) -> list[dict[str, Any]]:
    rows = []
    for reader in found["readers"]:
        is_late = lag is not None and reader["lag"] > lag
        is_holding = held is not None and reader["held_bytes"] > held
        where = f"{reader['reader']} on {reader['topic']}-{reader['partition']}"
        about = f"{reader['lag']} records behind, holds {reader['held_bytes']} bytes"
        rows.append(_row(where, "problem" if is_late or is_holding else "ok", about))
    return rows


def _groups(
    found: dict[str, Any], registered: set[tuple[str, str]], lag: int | None
) -> list[dict[str, Any]]:
    """One row per group and topic; registered readers have their own rows."""
    behind: dict[tuple[str, str], int] = {}
    for row in found["groups"]:
        where = row["group"], row["topic"]
        if where not in registered and row["lag"] is not None:
            behind[where] = behind.get(where, 0) + row["lag"]
    return [
        _row(
            f"{group} on {topic}",
            "problem" if lag is not None and records > lag else "ok",
            f"{records} records behind",
        )
        for (group, topic), records in behind.items()
    ]


def _row(what: str, state: str, about: str) -> dict[str, Any]:
    return {"check": what, "state": state, "about": about}
