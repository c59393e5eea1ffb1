"""The command tree, loaded lazily: ``--help`` reads a table and imports no command."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cordwood.cli.options.tls import add_tls_options
from cordwood.cli.output.help_text import name_values
from cordwood.version import __version__

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("serve:serve", "Run a broker."),
    "topic": ("topic:app", "Create, list, describe, alter and delete topics."),
    "produce": ("produce:produce", "Append records from a file or pipe."),
    "consume": ("consume:consume", "Print records."),
    "tail": ("consume:tail", "Print the last records; with -f, follow new ones."),
    "cat": ("cat:cat", "Print a topic as text lines for tools like awk."),
    "group": ("group:app", "List, describe, seek and delete consumer groups."),
    "reader": ("reader:app", "Manage the named readers that RECLAIM waits for."),
    "route": ("route:app", "Bind routing keys to topics."),
    "pipeline": ("pipeline:app", "Run the Spark jobs and show their status."),
    "segment": ("segment:app", "List, dump and verify segment files."),
    "config": ("config:app", "Show the broker's settings and where each was set."),
    "check": ("check:check", "Check the broker's health; for monitoring, by exit code."),
    "doctor": ("doctor:doctor", "Check that this machine can run a broker and Spark."),
    "certs": ("certs:app", "Create test certificates for TLS."),
    "compact": ("compact:compact", "Compact a topic, or explain when it is due."),
    "dlq": ("dlq:app", "Count, show and replay dead letters."),
    "audit": ("audit:audit", "Find gaps and duplicates; check that every record was routed."),
    "table": ("table:table", "Write the latest value per key as a Parquet or Delta table."),
    "sql": ("sql:sql", "Run SQL over topics: one query, a file or a prompt."),
    "archive": ("archive:app", "Archive records in verifiable bundles, and restore them."),
    "demo": ("demo:demo", "Play two stories on a real broker and Spark, checking every step."),
    "bench": ("bench:bench", "Measure throughput and latency of this machine or a broker."),
    "generate": ("generate:app", "Print files for Prometheus, Grafana, systemd and Compose."),
    "completion": ("completion:completion", "Print the completion script for a shell."),
    "scenario": ("scenario:scenario", "Run a test scenario against a real broker."),
}


class LazyCommands(TyperGroup):
    """Imports the module of a command when that command runs."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands in the order of the table."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Load one command."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module_name, _, attribute = COMMANDS[cmd_name][0].partition(":")
        found = getattr(importlib.import_module(f"cordwood.cli.commands.{module_name}"), attribute)
        if not isinstance(found, typer.Typer):
            single = typer.Typer(rich_markup_mode=None, add_completion=False)
            single.command(cmd_name)(found)
            found = single
        command = typer.main.get_command(found)
        command.name = cmd_name
        name_values(command)
        add_tls_options(command)
        command.short_help = COMMANDS[cmd_name][1]  # shells show it next to the name
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a closed output pipe is not a failure, as head(1) expects."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit from None
        return result

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve a command; for a misspelt one, suggest the nearest."""
        near = difflib.get_close_matches(args[0], COMMANDS, 1)
        if args[0] not in COMMANDS and near:
            ctx.fail(f"No such command {args[0]!r}; did you mean {near[0]}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands from the table, without importing anything."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])


app = typer.Typer(
    name="cordwood",
    cls=LazyCommands,
    help="A durable message log: Kafka's protocol and plain lines in front, Spark behind.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: faster, and the same on every terminal
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"cordwood {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="The version.")
    ] = False,
) -> None:
    del version
    from cordwood.config import check_environment

    check_environment(os.environ)
