"""``cordwood segment``: look at the files themselves; needs the data directory, no broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from cordwood.cli.output import Format, FormatOption, show

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
    from cordwood.log.scan import End

    scan, rows = _scan(file)
    show(rows, form)
    if scan.end is not End.CLEAN:
        typer.echo(f"{file}: {scan.end.value} after {scan.valid_bytes} bytes", err=True)
        raise typer.Exit(PROBLEMS)


@app.command()
def verify(
    topic: Annotated[str | None, typer.Argument(help="Only this topic.")] = None,
    data: DataOption = DEFAULT_DATA,
    form: FormatOption = Format.TABLE,
) -> None:
    """Read every batch of every segment and check its length and checksum; exit 5 on damage."""
    from cordwood.log.scan import End

    rows, damaged = [], 0
    for path in _logs(data, topic):
        scan, batches = _scan(path)
        damaged += scan.end is not End.CLEAN
        rows.append(
            {
                "file": f"{path.parent.name}/{path.name}",
                "batches": len(batches),
                "valid_bytes": scan.valid_bytes,
                "bytes": path.stat().st_size,
                "end": scan.end.value,
            }
        )
    show(rows, form)
    if damaged:
        typer.echo(f"{damaged} damaged or unfinished segment files", err=True)
        raise typer.Exit(PROBLEMS)


def _logs(data: Path, topic: str | None) -> Iterator[Path]:
    from cordwood.errors import UnknownTopic

    found = sorted(data.glob("*/*.log"))
    wanted = [
        path for path in found if topic is None or path.parent.name.rpartition("-")[0] == topic
    ]
    if not wanted:
        what = f"no segment of topic {topic}" if topic else "no segments"
        raise UnknownTopic(f"{data} has {what}; name the data directory with --data")
    yield from wanted


def _scan(path: Path) -> tuple[Any, list[dict[str, Any]]]:
    from cordwood.batch.header import parse_header
    from cordwood.log.scan import scan

    content = path.read_bytes()
    found = scan(content)
    rows, position = [], 0
    while position < found.valid_bytes:
        header = parse_header(content, position)
        rows.append(
            {
                "position": position,
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
        )
        position += header.size_bytes
    return found, rows


def _kind(is_control: bool, is_transactional: bool) -> str:
    if is_control:
        return "control"
    return "transactional" if is_transactional else "data"
