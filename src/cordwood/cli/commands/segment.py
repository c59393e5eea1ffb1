"""``cordwood segment``: inspect segment files; needs the data directory, not a broker."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cordwood.cli.commands.compress import compress, format_ratio
from cordwood.cli.commands.scrub import accept_damage, scrub
from cordwood.cli.options.arguments import FormatOption, command_group
from cordwood.cli.output.progress import ProgressBar, QuietOption, progress
from cordwood.cli.output.row_printer import Format, format_time, show
from cordwood.errors import UnknownTopic
from cordwood.log.format.layout import parse_directory_name, parse_file_name
from cordwood.log.format.scan import BatchWalk, End, Located, read_fd
from cordwood.metadata.keys import SegmentEntry
from cordwood.model import TopicPartition
from cordwood.plural import plural

app = command_group(
    "Segment files of a data directory: list, dump, verify, scrub, compress, accept-damage."
)

app.command()(scrub)
app.command()(compress)
app.command("accept-damage")(accept_damage)

PROBLEMS = 5
UNREADABLE = "unreadable"
DataOption = Annotated[
    Path, typer.Option("--data", envvar="CORDWOOD_DATA", help="The data directory.", metavar="DIR")
]
DEFAULT_DATA = Path("data")


@app.command("ls")
def list_segments(
    topic: Annotated[str | None, typer.Argument(help="Only this topic.")] = None,
    data: DataOption = DEFAULT_DATA,
    form: FormatOption = Format.TABLE,
) -> None:
    """List segment files with size, codec and last scrub; other files are named on stderr."""
    from cordwood.log.lifecycle.directory import META
    from cordwood.metadata.read_only import peek_segments

    entries = peek_segments(data / META)
    rows = [
        {
            "partition": path.parent.name,
            "file": path.name,
            "base_offset": int(path.stem),
            "bytes": path.stat().st_size if path.is_file() else None,
            **_compressed(_entry(path, entries)),
            **_scrubbed(_entry(path, entries)),
        }
        for path in _logs(data, topic)
    ]
    show(rows, form)


def _entry(
    path: Path, entries: Mapping[tuple[TopicPartition, int], SegmentEntry]
) -> SegmentEntry | None:
    tp = parse_directory_name(path.parent.name)
    return entries.get((tp, int(path.stem))) if tp is not None else None


def _compressed(entry: SegmentEntry | None) -> dict[str, Any]:
    """Return the codec that the broker gave a segment, and its size relative to before."""
    result = entry.compression if entry else None
    if entry is None or result is None or result.is_kept:
        return {"codec": None, "ratio": None}
    ratio = format_ratio(entry.size_bytes, result.bytes_before)
    return {"codec": result.codec, "ratio": ratio}


def _scrubbed(entry: SegmentEntry | None) -> dict[str, Any]:
    """Return the broker's record of the last scrub; empty for a segment not scrubbed yet."""
    if entry is None or entry.scrub is None:
        return {"scrubbed": None, "damaged_ranges": None, "accepted_ranges": None}
    return {
        "scrubbed": format_time(entry.scrub.at_ms),
        "damaged_ranges": len(entry.scrub.damage),
        "accepted_ranges": len(entry.scrub.accepted),
    }


@app.command()
def dump(
    file: Annotated[
        Path, typer.Argument(help="A .log file.", exists=True, dir_okay=False, metavar="FILE")
    ],
    form: FormatOption = Format.TABLE,
) -> None:
    """Print the batch headers of one segment file."""
    with file.open("rb") as opened:
        walk = BatchWalk(read_fd(opened.fileno()), os.fstat(opened.fileno()).st_size, base_offset=0)
        show([_batch_row(located) for located in walk], form)
        end = walk.end()
    if end is not End.CLEAN:
        typer.echo(f"{file}: {end.value} after {plural(walk.valid_bytes, 'byte')}", err=True)
        raise typer.Exit(PROBLEMS)


@app.command()
def verify(
    topic: Annotated[str | None, typer.Argument(help="Only this topic.")] = None,
    data: DataOption = DEFAULT_DATA,
    form: FormatOption = Format.TABLE,
    quiet: QuietOption = False,
) -> None:
    """Read every batch of every segment and check length and checksum; exit 5 on damage."""
    paths = list(_logs(data, topic))
    total = sum(path.stat().st_size for path in paths if path.is_file())
    with progress("verifying", total=total, unit="bytes", quiet=quiet) as bar:
        rows = [_verified(path, bar) for path in paths]
    show(rows, form)
    damaged = sum(row["end"] != End.CLEAN.value for row in rows)
    if damaged:
        files = plural(damaged, "segment file")
        typer.echo(f"damaged, unfinished or unreadable: {files}", err=True)
        raise typer.Exit(PROBLEMS)
    if form is Format.TABLE and not quiet:
        typer.echo(f"{plural(len(rows), 'segment file')} checked: no damage", err=True)


def _logs(data: Path, topic: str | None) -> Iterator[Path]:
    """Yield the files named like segments; report other .log files on stderr and skip them."""
    wanted = []
    for path in sorted(data.glob("*/*.log")):
        partition = parse_directory_name(path.parent.name)
        if topic is not None and (partition is None or partition.topic != topic):
            continue
        if partition is None or parse_file_name(path.name) is None:
            typer.echo(f"{path} is not a segment file; skipped", err=True)
        else:
            wanted.append(path)
    if not wanted:
        what = f"no segment of topic {topic}" if topic else "no segments"
        raise UnknownTopic(f"{data} has {what}; give the data directory with --data")
    yield from wanted


def _verified(path: Path, bar: ProgressBar) -> dict[str, Any]:
    """Return the result of checking one file; a file that cannot be read gets a row too."""
    try:
        return _walked(path, bar)
    except OSError as error:
        typer.echo(f"{path} cannot be read: {error.strerror}", err=True)
        unread = {"batches": 0, "valid_bytes": 0, "bytes": None, "end": UNREADABLE}
        return {"file": f"{path.parent.name}/{path.name}", **unread}


def _walked(path: Path, bar: ProgressBar) -> dict[str, Any]:
    """Check one file in constant memory, whatever its size."""
    with path.open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        walk = BatchWalk(read_fd(file.fileno()), size_bytes, int(path.stem))
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
