"""``cordwood doctor``: can a broker and Spark run on this machine, and what to do if not."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cordwood.cli.doctor.machine_facts import clock_facts, disk_facts, limit_facts, tls_facts
from cordwood.cli.doctor.port_facts import port_facts
from cordwood.cli.doctor.runtime_facts import kernel_facts, python_facts, spark_facts
from cordwood.cli.options.arguments import FormatOption, parse_settings
from cordwood.cli.output.row_printer import Format, show
from cordwood.config import BrokerConfig, load_broker_config
from cordwood.decide.doctor import CheckResult, CheckState, Facts, diagnose
from cordwood.plural import plural

PROBLEMS = 5


def doctor(
    config: Annotated[
        str | None, typer.Option(help="A TOML file of settings.", metavar="FILE")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="The data directory. [default: as in the settings]", metavar="DIR"),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "-c",
            "--setting",
            help="A setting, as `cordwood serve` takes it; repeatable.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Check Python, Java, Spark, disk, ports, TLS files, limits and the clock of this machine.

    Uses the settings that `cordwood serve` would use here, and changes nothing. Works without Spark
    and beside a running broker. Exit 0 if a broker can run, warnings or not; 5 if something must be
    fixed first.
    """
    flags: dict[str, object] = dict(parse_settings(setting or []))
    if data is not None:
        flags["data"] = data
    findings = diagnose(collect(load_broker_config(flags, os.environ, config)))
    if form is Format.TABLE:
        typer.echo(as_text(findings))
    else:
        show([dataclasses.asdict(finding) for finding in findings], form)
    if any(finding.state is CheckState.PROBLEM for finding in findings):
        raise typer.Exit(PROBLEMS)


def collect(config: BrokerConfig) -> Facts:
    """Collect every fact; takes a second or two where Spark is installed."""
    return Facts(
        python=python_facts(),
        spark=spark_facts(is_wanted=config.pipeline == "embedded"),
        ports=tuple(port_facts(config)),
        disk=disk_facts(Path(config.data)),
        limits=limit_facts(config),
        clock=clock_facts(),
        kernels=kernel_facts(),
        tls=tls_facts(config),
    )


def as_text(findings: Sequence[CheckResult]) -> str:
    """One line per finding, what to do below it, and how many of each kind there are."""
    width = max(len(finding.check) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.state:<8} {finding.check:<{width}}  {finding.found}")
        if finding.remedy:
            lines.append(f"{'':<8} {'':<{width}}  to do: {finding.remedy}")
    problems, warnings = (
        sum(finding.state is state for finding in findings)
        for state in (CheckState.PROBLEM, CheckState.WARNING)
    )
    return "\n".join([*lines, f"{plural(problems, 'problem')}, {plural(warnings, 'warning')}"])
