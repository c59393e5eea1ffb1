"""``cordwood segment``: look at the files themselves; needs the data directory, no broker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from cordwood.cli.output import Format, FormatOption, show
from cordwood.cli.progress import Bar, QuietOption, progress
from cordwood.errors import UnknownTopic
from cordwood.log.scan import End, Located, Walk, read_fd

app = typer.Typer(
    help="Segment files of a data directory: list, dump, verify.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)

PROBLEMS = 5
DataOption = Annotated[
    Path, typer.Option("--data", envvar="CORDWOOD_DATA", help="The data directory.")
]
DEFAULT_DATA = Path("data")


@app.command("ls")
def list_segments(
    topic: Annotated[str | None, typer.Argument(help="Only this topic.")] = None,
    data: DataOption = DEFAULT_DATA,
    form: FormatOption = Format.TABLE,
) -> None:
    """Every segment file with its offsets and size."""
    rows = [
        {
            "partition": path.parent.name,
            "file": path.name,
            "base_offset": int(path.stem),
            "bytes": path.stat().st_size,
        }
        for path in _logs(data, topic)
    ]
    show(rows, form)


@app.command()
def dump(
    file: Annotated[Path, typer.Argument(help="A .log file.", exists=True, dir_okay=False)],
    form: FormatOption = Format.TABLE,
) -> None:
    """The batches of one segment file, header by header."""
    with file.open("rb") as opened:
        walk = Walk(read_fd(opened.fileno()), os.fstat(opened.fileno()).st_size, base_offset=0)
        show([_batch_row(located) for located in walk], form)
        end = walk.end()
    if end is not End.CLEAN:
        typer.echo(f"{file}: {end.value} after {walk.valid_bytes} bytes", err=True)
        raise typer.Exit(PROBLEMS)


@app.command()
def verify(
    topic: Annotated[str | None, typer.Argument(help="Only this topic.")] = None,
    data: DataOption = DEFAULT_DATA,
    form: FormatOption = Format.TABLE,
    quiet: QuietOption = False,
) -> None:
    """Read every batch of every segment and check its length and checksum; exit 5 on damage."""
    paths = list(_logs(data, topic))
    total = sum(path.stat().st_size for path in paths)
    with progress("verifying", total=total, unit="bytes", quiet=quiet) as bar:
        rows = [_verified(path, bar) for path in paths]
    show(rows, form)
    damaged = sum(row["end"] != End.CLEAN.value for row in rows)
    if damaged:
        typer.echo(f"{damaged} damaged or unfinished segment files", err=True)
        raise typer.Exit(PROBLEMS)


def _logs(data: Path, topic: str | None) -> Iterator[Path]:
    found = sorted(data.glob("*/*.log"))
    wanted = [
        path for path in found if topic is None or path.parent.name.rpartition("-")[0] == topic
    ]
    if not wanted:
        what = f"no segment of topic {topic}" if topic else "no segments"
        raise UnknownTopic(f"{data} has {what}; name the data directory with --data")
    yield from wanted


def _verified(path: Path, bar: Bar) -> dict[str, Any]:
    """What a walk over one file found, in constant memory however large it is."""
    with path.open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        walk = Walk(read_fd(file.fileno()), size_bytes, int(path.stem))
        batches = 0
        for located in walk:
            batches += 1
            bar.advance(located.header.size_bytes)
        bar.advance(size_bytes - walk.valid_bytes)
        end = walk.end()
    return {
        "file": f"{path.parent.name}/{path.name}",
        "batches": batches,
        "valid_bytes": walk.valid_bytes,
        "bytes": size_bytes,
        "end": end.value,
    }


def _batch_row(located: Located) -> dict[str, Any]:
    header = located.header
    return {
        "position": located.position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.count,
        "bytes": header.size_bytes,
        "codec": header.codec.name.lower(),
        "producer": header.producer_id,
        "sequence": header.base_sequence,
        "epoch": header.leader_epoch,
        "max_ms": header.max_timestamp_ms,
        "kind": _kind(header.is_control, header.is_transactional),
    }


def _kind(is_control: bool, is_transactional: bool) -> str:
    if is_control:
        return "control"
    return "transactional" if is_transactional else "data"
