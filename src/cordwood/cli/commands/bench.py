"""``cordwood bench``: throughput and latency of this machine or of a broker, as clients see it."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from cordwood.cli.commands.produce import Compression
from cordwood.cli.options.arguments import FormatOption, confirm, parse_broker, some_bytes
from cordwood.cli.options.tls import BrokerTarget, with_tls
from cordwood.cli.output.progress import QuietOption, progress
from cordwood.cli.output.row_printer import Format, show
from cordwood.plural import plural

if TYPE_CHECKING:
    from cordwood.lab.loadtest import Load, Results

LATENCY_RECORDS = 2_000


class Workload(StrEnum):
    """What to measure."""

    PRODUCE = "produce"
    CONSUME = "consume"
    LATENCY = "latency"
    LINES = "lines"
    ALL = "all"


class Acks(StrEnum):
    """Kafka's acks settings."""

    ALL = "all"
    ONE = "1"
    NONE = "0"


class Durability(StrEnum):
    """When the temporary broker acknowledges a record."""

    FSYNC = "fsync"
    OS = "os"


class BenchTarget(NamedTuple):
    """The broker to measure; ``home`` is the directory of a temporary one."""

    broker: BrokerTarget
    home: Path | None


def bench(
    workload: Annotated[Workload, typer.Argument(help="What to measure.")] = Workload.ALL,
    records: Annotated[int, typer.Option("-n", "--records", min=1, help="How many.")] = 500_000,
    size: Annotated[
        int,
        typer.Option(
            "-s", "--size", parser=some_bytes, help="The size of a record.", metavar="SIZE"
        ),
    ] = 100,
    acks: Annotated[
        Acks, typer.Option(help="The acknowledgement that a producer waits for.")
    ] = Acks.ALL,
    codec: Annotated[
        Compression, typer.Option("-z", "--compression", help="How batches are compressed.")
    ] = Compression.NONE,
    clients: Annotated[
        int, typer.Option("-c", "--clients", min=1, max=256, help="The number of parallel clients.")
    ] = 4,
    durability: Annotated[
        Durability, typer.Option(help="fsync (on the device) or os (in the page cache).")
    ] = Durability.FSYNC,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Measure the disk of this directory. [default: the temporary directory]",
            exists=True,
            file_okay=False,
            metavar="DIR",
        ),
    ] = None,
    broker: Annotated[
        BrokerTarget | None,
        typer.Option(
            "-b",
            "--broker",
            parser=parse_broker,
            callback=with_tls,
            help="Measure this broker, in topics that are deleted afterwards. [default: a "
            "temporary broker]",
            metavar="HOST:PORT",
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask before sending lines to a running broker.")
    ] = False,
    quiet: QuietOption = False,
    form: FormatOption = Format.TABLE,
) -> None:
    """Measure throughput and latency with real clients; by default of a temporary broker.

    produce and consume move whole batches with cordwood's own client and, where confluent-kafka is
    installed, single records with librdkafka. Latencies are what the client saw: p50 is the median,
    p99 is the value that 99 of 100 do not exceed.
    """
    from cordwood.lab.loadtest import Load
    from cordwood.model import Codec

    if broker is not None and workload is Workload.LINES:
        confirm(f"Append {plural(records, 'line')} to the ingress topic of {broker}?", yes=yes)
    load = Load(
        records=records,
        size_bytes=size,
        acks={Acks.ALL: -1, Acks.ONE: 1, Acks.NONE: 0}[acks],
        codec=Codec[codec.name],
        clients=clients,
        tls=broker.tls if broker else None,
    )
    with _target(broker, data, durability.value) as target:
        typer.echo(_about(target, load, acks.value, codec.value), err=True)
        run = _BenchRun(target, load, quiet=quiet, on_lines=broker is None or yes)
        show([_row(each) for each in run.play(workload)], form)


@contextmanager
def _target(
    broker: BrokerTarget | None, data: Path | None, durability: str
) -> Iterator[BenchTarget]:
    """Yield the given broker, or a temporary one in a directory that is removed afterwards."""
    if broker is not None:
        yield BenchTarget(broker, None)
        return
    from cordwood.lab.scenarios.stage import Child

    home = Path(tempfile.mkdtemp(prefix="cordwood-bench-", dir=data))
    try:
        child = Child(home / "data", {"durability": durability})
        try:
            yield BenchTarget(BrokerTarget(child.addresses["kafka"]), home)
        finally:
            child.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _about(target: BenchTarget, load: Load, acks: str, codec: str) -> str:
    """Describe what is measured, so that the results can be judged."""
    from cordwood.cli.options.connect import kafka_client

    where = target.broker if target.home is None else f"a temporary broker in {target.home}"
    with kafka_client(target.broker) as client:
        settings = {setting.name: setting.value for setting in client.broker_config()}
    return (
        f"{where}; {os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}\n"
        f"{load.size_bytes}-byte records, {plural(load.clients, 'client')}, acks={acks}, "
        f"compression={codec}, durability={settings.get('durability', 'unknown')}"
    )


class _BenchRun:
    """Runs workloads one after another, each in its own topics."""

    def __init__(self, target: BenchTarget, load: Load, *, quiet: bool, on_lines: bool) -> None:
        self._target = target
        self._load = load
        self._quiet = quiet
        self._on_lines = on_lines

    def play(self, workload: Workload) -> Iterator[Results]:
        """Yield the results of one workload, or of all that may run."""
        wanted = frozenset(Workload) if workload is Workload.ALL else frozenset({workload})
        if self._target.home is not None:
            from cordwood.lab.loadtest.device import sync

            yield sync(self._target.home)
            self._warm_up()
        if wanted & {Workload.PRODUCE, Workload.CONSUME}:
            yield from self._bulk(wanted)
        if Workload.LATENCY in wanted:
            yield from self._latency()
        if Workload.LINES in wanted and self._on_lines:
            yield self._lines()

    def _warm_up(self) -> None:
        """Send a few records first: a new broker loads modules and kernels with the first ones."""
        some = replace(self._load, records=self._load.batch_records, clients=1)
        cold = _BenchRun(self._target, some, quiet=True, on_lines=True)
        cold._lines()
        for _ in cold._bulk(frozenset({Workload.CONSUME})):
            pass

    def _bulk(self, wanted: frozenset[Workload]) -> Iterator[Results]:
        from cordwood.lab.loadtest import batches, librdkafka

        for client in (batches, librdkafka) if librdkafka.is_installed() else (batches,):
            with self._topic(self._load.clients) as topic:
                made = self._watched(f"produce, {client.NAME}", topic, client.produce)
                if Workload.PRODUCE in wanted:
                    yield made
                if Workload.CONSUME in wanted:
                    yield self._watched(f"consume, {client.NAME}", topic, client.consume)

    def _watched(self, what: str, topic: str, work: Callable[..., Results]) -> Results:
        with progress(what, total=self._load.records, quiet=self._quiet) as bar:
            return work(self._target.broker.address, topic, self._load, bar.advance)

    def _latency(self) -> Iterator[Results]:
        from cordwood.lab.loadtest.single import latency

        load = replace(self._load, records=min(self._load.records, LATENCY_RECORDS))
        with (
            self._topic(1) as topic,
            progress("latency", total=load.records, quiet=self._quiet) as bar,
        ):
            yield from latency(self._target.broker.address, topic, load, bar.advance)

    def _lines(self) -> Results:
        from cordwood.cli.options.connect import listener_address
        from cordwood.lab.loadtest.lines import push

        ingress, control = (
            listener_address(self._target.broker, at) for at in ("ingress", "control")
        )
        with progress("lines", total=self._load.records, quiet=self._quiet) as bar:
            return push(ingress, control, self._load, bar.advance)

    @contextmanager
    def _topic(self, partitions: int) -> Iterator[str]:
        """Create a topic and delete it afterwards."""
        from uuid import uuid4

        from cordwood.cli.options.connect import kafka_client

        name = f"cordwood-bench-{uuid4().hex[:12]}"
        with kafka_client(self._target.broker) as client:
            client.create_topic(name, partitions, {})
            try:
                yield name
            finally:
                client.delete_topic(name)


def _row(figures: Results) -> dict[str, Any]:
    """Format one row of the table; latencies in ms, rates over the whole run."""
    return {
        "workload": figures.workload,
        "client": figures.client,
        "records": figures.records,
        "records_per_s": round(figures.records_per_s),
        "mb_per_s": round(figures.bytes_per_s / 1e6, 1),
        "p50_ms": _ms(figures.wait_s(0.5)),
        "p99_ms": _ms(figures.wait_s(0.99)),
        "p99.9_ms": _ms(figures.wait_s(0.999)),
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)
