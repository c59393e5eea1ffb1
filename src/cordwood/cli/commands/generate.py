"""``cordwood generate``: files for Prometheus, Grafana, systemd and Compose, with your addresses.

The files in ``deploy/`` are what these commands print by default.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from cordwood.cli.options.arguments import DEFAULT_BROKER, check_address, command_group

app = command_group("Files for monitoring and for running the broker; each is printed to stdout.")

DEFAULT_HTTP = "127.0.0.1:8080"
HttpOption = Annotated[
    str,
    typer.Option(
        "--http",
        callback=check_address,
        help="The broker's HTTP address.",
        metavar="HOST:PORT",
        envvar="CORDWOOD_HTTP",
    ),
]
KafkaOption = Annotated[
    str,
    typer.Option(
        "--kafka",
        callback=check_address,
        help="The broker's Kafka address, for its clients.",
        metavar="HOST:PORT",
    ),
]
DataOption = Annotated[
    str,
    typer.Option("--data", help="The data directory, below /var/lib.", metavar="DIR"),
]


@app.command()
def grafana() -> None:
    """Print the Grafana dashboard (JSON)."""
    _print("grafana.json")


@app.command()
def prometheus(http: HttpOption = DEFAULT_HTTP) -> None:
    """Print a Prometheus configuration that scrapes the broker."""
    _print("prometheus.yml", HTTP=http)


@app.command()
def alerts() -> None:
    """Print the alert rules for Prometheus."""
    _print("alerts.yml")


@app.command()
def systemd(
    program: Annotated[
        str,
        typer.Option(
            help="The path of the cordwood program. [default: this one]",
            metavar="PATH",
            show_default=False,
        ),
    ] = "",
    config: Annotated[
        str, typer.Option(help="The file of the broker's settings.", metavar="FILE")
    ] = "/etc/cordwood.toml",
    data: DataOption = "/var/lib/cordwood",
) -> None:
    """Print a systemd unit that runs the broker as user cordwood."""
    _print("cordwood.service", PROGRAM=program or _this_program(), CONFIG=config, DATA=data)


@app.command()
def sysusers(data: DataOption = "/var/lib/cordwood") -> None:
    """Print the sysusers.d file that creates the user of the systemd unit."""
    _print("sysusers.conf", DATA=data)


@app.command()
def compose(http: HttpOption = DEFAULT_HTTP, kafka: KafkaOption = DEFAULT_BROKER.address) -> None:
    """Print a Compose file: a broker, Prometheus and Grafana."""
    _print("compose.yml", HTTP=http, KAFKA=kafka)


def render(template: str, values: dict[str, str]) -> str:
    """Return a template with each ``@NAME@`` replaced."""
    text = (files("cordwood.cli") / "templates" / template).read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def _print(template: str, **values: str) -> None:
    typer.echo(render(template, values), nl=False)


def _this_program() -> str:
    """Return the program of the environment that runs this command."""
    return str(Path(sys.executable).with_name("cordwood"))
