"""``cordwood sql``: runs a query, a script from stdin, or an interactive prompt."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cordwood.cli.options.arguments import DEFAULT_BROKER, BrokerOption
from cordwood.cli.options.spark_options import ConfOption, MasterOption, cancel_jobs
from cordwood.cli.output.row_printer import PrintMode, print_rows
from cordwood.errors import CordwoodError
from cordwood.plural import plural

if TYPE_CHECKING:
    from cordwood.pipeline.sql import TopicViews

CANCEL_S = 0.2
DROPPED = "\x03"  # represents a line that Ctrl-C ended
HELP = """\
.tables          topics of the broker
.schema TOPIC    columns of a topic
.mode [MODE]     table, json, ndjson, csv or markdown
.timer on|off    show how long each query takes
.help            show this help
.quit            exit (or Ctrl-D)
A query ends with a semicolon. Ctrl-C cancels a running query, or discards an unfinished one."""


def sql(
    query: Annotated[
        str | None, typer.Argument(help="One query. [default: read stdin, or show a prompt]")
    ] = None,
    mode: Annotated[
        PrintMode, typer.Option("--format", "--mode", help="How results are printed; -J is json.")
    ] = PrintMode.TABLE,
    broker: BrokerOption = DEFAULT_BROKER,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Query topics with Spark SQL: every topic is a view with the columns of the Kafka source.

    key_text and value_text are key and value as text, for get_json_object(value_text, '$.user.id').
    """
    from cordwood.cli.options.spark_options import broker_context, spark_session
    from cordwood.pipeline.sql import TopicViews

    with broker_context(broker, master=master) as api:
        api.status()  # reports an unreachable broker before Spark starts
        with spark_session("sql", master, conf) as spark:
            shell = SqlPrompt(TopicViews(spark, api), spark, mode)
            if query is not None:
                shell.run(query)
            elif sys.stdin.isatty():
                shell.prompt()
            else:
                for statement in statements(sys.stdin):
                    shell.run(statement)


class SqlPrompt:
    """An interactive session."""

    def __init__(self, topics: TopicViews, spark: Any, mode: PrintMode) -> None:
        self._topics = topics
        self._spark = spark
        self._is_cancelled = False
        self.mode = mode
        self.is_timed = False

    def run(self, text: str) -> None:
        """Run one query or one dot command."""
        if text.startswith("."):
            self._command(*text.split())
            return
        from cordwood.pipeline.sql import stream_rows

        started = time.monotonic()
        frame = self._topics.query(text.rstrip().removesuffix(";"))
        rows = itertools.takewhile(lambda _: not self._is_cancelled, stream_rows(frame, text))
        count = print_rows(frame.columns, rows, self.mode)
        if self.is_timed:
            typer.echo(f"{plural(count, 'row')} in {time.monotonic() - started:.3f} s", err=True)

    def prompt(self) -> None:
        """Read statements until the input ends; an error or Ctrl-C ends only the running query."""
        import readline  # noqa: F401 - gives input() history and line editing

        typer.echo("Topics are views; .help lists commands.", err=True)
        for statement in statements(_ask()):
            if statement in {".quit", ".exit"}:
                return
            try:
                self._run_cancellably(statement)
            except CordwoodError as error:
                typer.echo(f"{error}", err=True)

    def _run_cancellably(self, statement: str) -> None:
        """Run on a thread: Ctrl-C then cancels Spark jobs and never interrupts a call to Java."""
        self._is_cancelled = False
        with ThreadPoolExecutor(1, "statement") as pool:
            running = pool.submit(self.run, statement)
            try:
                running.result()
            except KeyboardInterrupt:
                self._is_cancelled = True
                while not running.done():  # it may just be starting another job
                    cancel_jobs(self._spark)
                    wait([running], CANCEL_S)
                typer.echo("cancelled", err=True)

    def _command(self, name: str, *words: str) -> None:
        if name == ".tables":
            print_rows(["topic"], ((topic,) for topic in self._topics.names()), self.mode)
        elif name == ".schema" and words:
            print_rows(["column", "type"], self._topics.schema(words[0]), self.mode)
        elif name == ".mode" and words and words[0] in set(PrintMode):
            self.mode = PrintMode(words[0])
        elif name == ".mode" and not words:
            typer.echo(self.mode.value)
        elif name == ".timer" and words in {("on",), ("off",)}:
            self.is_timed = words == ("on",)
        elif name == ".help":
            typer.echo(HELP)
        else:
            typer.echo(f"{' '.join([name, *words])} is not a command; .help lists all", err=True)


def statements(lines: Iterable[str]) -> Iterator[str]:
    """Split lines into queries, which end with a semicolon, and dot commands, one per line.

    A ``DROPPED`` line discards the incomplete query.
    """
    held: list[str] = []
    for line in lines:
        text = line.strip()
        if line == DROPPED:
            held = []
        elif not held and text.startswith("."):
            yield text
        elif text and not text.startswith("--"):
            held.append(text)
            if text.endswith(";"):
                yield " ".join(held)
                held = []
    if held:
        yield " ".join(held)


def _ask() -> Iterator[str]:
    while True:
        try:
            yield input("cordwood> ")
        except EOFError:
            typer.echo("", err=True)
            return
        except KeyboardInterrupt:
            typer.echo("", err=True)
            yield DROPPED
