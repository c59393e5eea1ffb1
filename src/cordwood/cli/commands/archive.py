"""``cordwood archive``: bundles of records that can be verified years later, and restored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cordwood.cli.options.arguments import (
    DEFAULT_BROKER,
    BrokerOption,
    FormatOption,
    OnlyTopicArgument,
    TopicArgument,
    command_group,
    some_bytes,
)
from cordwood.cli.options.spark_options import ConfOption, MasterOption
from cordwood.cli.options.tls import BrokerTarget
from cordwood.cli.output.progress import QuietOption, progress
from cordwood.cli.output.row_printer import Format, format_time, show
from cordwood.errors import CorruptionError
from cordwood.plural import plural
from cordwood.protocol.api.archive import ArchivedTopic
from cordwood.protocol.api.topics import CutTopic

if TYPE_CHECKING:
    from cordwood.client.storage import Storage
    from cordwood.decide.archive import Entry

PROBLEMS = 5

app = command_group("Archive sealed records in verifiable bundles, verify them, and restore them.")

DestOption = Annotated[
    str | None,
    typer.Option(
        "--dest",
        envvar="CORDWOOD_ARCHIVE",
        help="A directory or object-store URL. [default: archive/ in the broker's data directory]",
        metavar="PATH-OR-URL",
    ),
]


@app.command()
def create(
    topic: TopicArgument,
    through: Annotated[
        str | None,
        typer.Option(
            help="Up to and including this seq, or older than a time.", metavar="SEQ|TIME"
        ),
    ] = None,
    bundle_records: Annotated[
        int | None, typer.Option(min=1, help="The most records in a bundle.", metavar="RECORDS")
    ] = None,
    bundle_bytes: Annotated[
        int | None,
        typer.Option(
            parser=some_bytes,
            help="The most batch bytes in a bundle. [default: 256MiB]",
            metavar="SIZE",
        ),
    ] = None,
    dest: DestOption = None,
    cut: Annotated[bool, typer.Option("--cut", help="Seal the active segments first.")] = False,
    lines: Annotated[bool, typer.Option(help="Also write the records as text lines.")] = True,
    parquet: Annotated[
        bool, typer.Option("--parquet", help="Also write each bundle's records as Parquet.")
    ] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    master: MasterOption = None,
    conf: ConfOption = None,
    form: FormatOption = Format.TABLE,
    quiet: QuietOption = False,
) -> None:
    """Write sealed records that are not archived yet as bundles, and read the bundles back."""
    from cordwood.cli.options.spark_options import broker_context, spark_session
    from cordwood.config import KEEP_ALL
    from cordwood.errors import ConfigError
    from cordwood.pipeline.archive import ArchiveRequest, create_archive
    from cordwood.pipeline.runtime.staging import StagingTarget

    if bundle_records is not None and bundle_bytes is not None:
        raise typer.BadParameter("give --bundle-records or --bundle-bytes, not both")
    seq, time_ms = _parse_through(through)
    request = ArchiveRequest(
        topic=topic,
        through_seq=seq,
        through_ms=time_ms,
        bundle_records=bundle_records or KEEP_ALL,
        bundle_bytes=bundle_bytes or KEEP_ALL,
        lines=lines,
        parquet=parquet,
    )
    warnings: list[str] = []
    with broker_context(broker, master=master) as api:
        storage = _storage(dest, broker)
        if dest is None and not StagingTarget.of(api).is_reachable():
            raise ConfigError(
                f"the broker's archive directory {storage.place} cannot be written from this "
                "machine; choose the archive's place with --dest"
            )
        if cut:
            api.call(CutTopic(topic))
        with (
            spark_session("archive", master, conf) as spark,
            progress(f"archiving {topic}", quiet=quiet) as bar,
        ):
            entries = create_archive(
                spark,
                api,
                storage,
                request,
                watch=bar.watch,
                warn=warnings.append,
            )
    show([_row(entry) for entry in entries], form)
    typer.echo(
        f"{plural(len(entries), 'bundle')} in {storage.place}"
        if entries
        else f"{topic} has no sealed records to archive; use --cut to seal the active segments "
        "first",
        err=True,
    )
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)


@app.command("ls")
def list_bundles(
    topic: OnlyTopicArgument = None,
    dest: DestOption = None,
    broker: BrokerOption = DEFAULT_BROKER,
    form: FormatOption = Format.TABLE,
) -> None:
    """List every bundle in the manifest, and whether the broker has verified it."""
    from cordwood.client.topic_archive import list_topic_archives
    from cordwood.decide.archive import check_manifest

    rows = []
    for topic_archive in list_topic_archives(_storage(dest, broker), topic):
        verified = _verified(broker, topic_archive)
        entries, _ = check_manifest(topic_archive.manifest())
        rows += [{**_row(e), "verified": verified.get(e.bundle, "unknown")} for e in entries]
    show(rows, form, empty="no bundles yet; write some with `cordwood archive create TOPIC`")


@app.command()
def verify(
    topic: OnlyTopicArgument = None,
    dest: DestOption = None,
    offline: Annotated[
        bool,
        typer.Option("--offline", help="Do not compare with the broker's records of the archive."),
    ] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    form: FormatOption = Format.TABLE,
    quiet: QuietOption = False,
) -> None:
    """Check the manifest's chain and every bundle's bytes; exit 5 if something is wrong."""
    from cordwood.client.topic_archive import list_topic_archives

    topic_archives = list_topic_archives(_storage(dest, broker), topic)
    rows: list[dict[str, Any]] = []
    checked = 0
    for topic_archive in topic_archives:
        with progress(f"checking {topic_archive.home}", unit="bytes", quiet=quiet) as bar:
            entries, findings = topic_archive.verify(bar.watch)
        if not offline:
            findings += _compare_with_broker(broker, topic_archive, entries)
        checked += len(entries)
        rows += [{"archive": topic_archive.home, **finding._asdict()} for finding in findings]
    show(rows, form)
    typer.echo(f"{plural(checked, 'bundle')} checked, {plural(len(rows), 'problem')}", err=True)
    if rows:
        raise typer.Exit(PROBLEMS)


@app.command()
def restore(
    topic: TopicArgument,
    to: Annotated[
        str | None,
        typer.Option(help="The topic to restore into. [default: the same name]", metavar="TOPIC"),
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="As of this time: -1h, ISO 8601 or ms.", metavar="TIME")
    ] = None,
    dest: DestOption = None,
    broker: BrokerOption = DEFAULT_BROKER,
    master: MasterOption = None,
    conf: ConfOption = None,
    form: FormatOption = Format.TABLE,
    quiet: QuietOption = False,
) -> None:
    """Restore archived records and cursors, each once; run it again if it was interrupted."""
    from cordwood.cli.options.offset_spec import parse_time
    from cordwood.cli.options.spark_options import broker_context, spark_session
    from cordwood.client.topic_archive import list_topic_archives
    from cordwood.pipeline.archive import restore_archive

    topic_archive = list_topic_archives(_storage(dest, broker), topic)[-1]
    if findings := _compare_with_broker(broker, topic_archive, topic_archive.entries()):
        first = findings[0]
        raise CorruptionError(
            f"{first.where}: {first.detail} ({topic_archive.home} in "
            f"{topic_archive.storage.place}); nothing was restored. Restore the manifest from a "
            "copy first"
        )
    at_ms = None if at is None else parse_time(at.removeprefix("@"))
    with (
        broker_context(broker, master=master) as api,
        spark_session("restore", master, conf) as spark,
        progress(f"restoring {topic}", unit="bytes", quiet=quiet) as bar,
    ):
        restored = restore_archive(
            spark,
            api,
            topic_archive,
            to=to or topic,
            at_ms=at_ms,
            watch=bar.watch,
        )
    show(
        [
            {"topic": restored.topic, "partition": partition, "reader": reader, "offset": offset}
            for partition, readers in sorted(restored.cursors.items())
            for reader, offset in sorted(readers.items())
        ],
        form,
    )
    typer.echo(f"{plural(restored.records, 'record')} restored to {restored.topic}", err=True)


def _storage(dest: str | None, broker: BrokerTarget) -> Storage:
    """Open the given location, or the broker's own archive directory."""
    from pathlib import Path

    from cordwood.cli.options.spark_options import broker_context
    from cordwood.client.storage import open_storage

    if dest is not None:
        return open_storage(dest)
    with broker_context(broker) as api:
        return open_storage(str(Path(api.status().data) / "archive"))


def _verified(broker: BrokerTarget, topic_archive: Any) -> dict[str, str]:
    """Map bundles to yes or no; empty if no broker is reachable or knows this archive."""
    from cordwood.errors import UnavailableError

    try:
        state = _known_to_broker(broker, topic_archive)
    except UnavailableError:  # an archive can be listed without a broker
        return {}
    return {
        bundle.name.partition("/")[2]: "yes" if bundle.verified else "no"
        for part in (state.partitions if state else ())
        for bundle in part.bundles
        if bundle.place == topic_archive.storage.place
    }


def _compare_with_broker(
    broker: BrokerTarget, topic_archive: Any, entries: list[Entry]
) -> list[Any]:
    """Compare with the broker: the chain alone cannot show that its last entries are missing."""
    from cordwood.decide.archive import check_known

    state = _known_to_broker(broker, topic_archive)
    return check_known(entries, topic_archive.known_links(state)) if state else []


def _known_to_broker(broker: BrokerTarget, topic_archive: Any) -> ArchivedTopic | None:
    """Return the broker's record of this archive; None if its topic was deleted or replaced."""
    from cordwood.cli.options.spark_options import broker_context
    from cordwood.decide.archive import topic_archive_name
    from cordwood.errors import UnknownTopic

    topic = topic_archive.home.rpartition(".")[0]
    with broker_context(broker) as api:
        try:
            state = api.archive(topic)
        except UnknownTopic:
            return None
    return state if topic_archive_name(topic, state.id) == topic_archive.home else None


def _parse_through(text: str | None) -> tuple[int | None, int | None]:
    from cordwood.cli.options.offset_spec import parse_time

    if text is None:
        return None, None
    if text.isdecimal():
        return int(text), None
    return None, parse_time(text.removeprefix("@"))


def _row(entry: Entry) -> dict[str, Any]:
    return {
        "number": entry.number,
        "bundle": entry.bundle,
        "topic": entry.topic,
        "partition": entry.partition,
        "first_seq": entry.first_seq,
        "last_seq": entry.last_seq,
        "first_time": format_time(entry.first_ms),
        "newest_time": format_time(entry.newest_ms),
        "records": entry.records,
        "bytes": entry.size_bytes,
        "sha256": entry.sha256,
        "archived": entry.archived,
    }
