"""``cordwood serve``: run a broker in the foreground until it is stopped."""

from __future__ import annotations

import inspect
import json
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

from cordwood.address import parse_address
from cordwood.config import (
    BrokerConfig,
    Row,
    TopicConfig,
    flag_name,
    format_value,
    load_broker_config,
    rows,
)
from cordwood.settings.kafka_names import BROKER_NAMES

ADDRESSES = "HOST:PORT,..."


def _value_name(field_name: str, kind: str, row: Row) -> str:
    """Return what help calls the value of a setting, by what the setting holds."""
    if row.choices:
        return "|".join(row.choices)
    words = field_name.split("_")
    for word, name in (("ms", "DURATION"), ("bytes", "SIZE")):
        if word in words:
            return name
    known = {
        "data": "DIR",
        **dict.fromkeys(("kafka", "ingress", "control", "http"), ADDRESSES),
        **dict.fromkeys(("kafka_tls", "ingress_tls", "control_tls", "http_tls"), ADDRESSES),
        **dict.fromkeys(("tls_cert", "tls_key", "tls_client_ca"), "FILE"),
        **dict.fromkeys(("tls_client_cert", "tls_client_key"), "FILE"),
        "advertised_kafka": "HOST:PORT",
        "advertised_http": "ADDRESS",
        "http_allowed_hosts": "HOST,...",
    }
    kinds = {"int": "N", "float": "NUMBER", "bool": "true|false"}
    return known.get(field_name) or kinds.get(kind, "NAME")


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a flag for every row of the settings tables, and hidden ones by Kafka's names.

    The flag of a topic setting is its default for topics that do not set it.
    """
    own = list(inspect.signature(command, eval_str=True).parameters.values())
    broker_rows, topic_rows = rows(BrokerConfig), rows(TopicConfig)
    flags = [
        *(_flag(name, "", *row) for name, row in broker_rows.items()),
        *(_flag(name, "Default of topics: ", *row) for name, row in topic_rows.items()),
        *(_flag(name, "", *topic_rows[each.setting]) for name, each in BROKER_NAMES.items()),
    ]
    kept = [parameter for parameter in own if parameter.kind is not parameter.VAR_KEYWORD]
    command.__signature__ = inspect.Signature([*kept, *flags])  # type: ignore[attr-defined]
    command.__annotations__ |= {flag.name: flag.annotation for flag in flags}
    return command


def _flag(name: str, what: str, field_name: str, kind: str, row: Row) -> inspect.Parameter:
    option = typer.Option(
        flag_name(name),
        help=f"{what}{row.doc} [default: {format_value(row, row.default) or 'none'}]",
        metavar=_value_name(field_name, kind, row),
        hidden=name in BROKER_NAMES,
        rich_help_panel="Settings (also CORDWOOD_* variables and --config)",
    )
    return inspect.Parameter(
        name.replace(".", "_"),
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[str | None, option],
    )


@_with_settings
def serve(
    config: Annotated[
        str | None, typer.Option("--config", help="A TOML file of settings.", metavar="FILE")
    ] = None,
    log_level: Annotated[
        str, typer.Option(help="The log level: debug, info, warning or error.", metavar="LEVEL")
    ] = "info",
    no_pipeline: Annotated[
        bool, typer.Option("--no-pipeline", help="Run without Spark; the same as --pipeline off.")
    ] = False,
    **settings: Any,
) -> None:
    """Run a broker: Kafka protocol, line ingress, line commands and HTTP.

    When it is ready it prints READY and the addresses as JSON on stdout. SIGTERM or Ctrl-C drains
    connections and stops it.
    """
    flags = {parameter.replace("_", "."): value for parameter, value in settings.items()}
    if no_pipeline:
        flags["pipeline"] = "off"
    loaded = load_broker_config(flags, os.environ, config)
    _start_logging(log_level)
    from cordwood.server.service import run_service

    run_service(loaded, on_ready=partial(_announce, advertised=loaded.advertised_http))


def _start_logging(level: str) -> None:
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise typer.BadParameter(
            f"{level!r} is not a log level; use debug, info, warning or error",
            param_hint="--log-level",
        )
    logging.basicConfig(
        level=number,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)-7s %(name)s %(message)s",
    )


def _announce(addresses: dict[str, list[str]], *, advertised: str = "") -> None:
    """Print a banner for people on stderr, and one line for programs on stdout."""
    first = {name: bound[0] for name, bound in addresses.items()}
    if advertised:
        first["advertised_http"] = advertised
    print(_banner(first), file=sys.stderr)
    print("READY " + json.dumps(first), flush=True)


def _nc(address: str) -> str:
    """Write an address as netcat takes it."""
    return " ".join(map(str, parse_address(address)))


def _banner(first: dict[str, str]) -> str:
    lines = ["cordwood is ready:"]
    if "kafka" in first:
        lines.append(f"  kafka    {first['kafka']:<22} kcat -b {first['kafka']} -L")
    if "ingress" in first:
        nc = _nc(first["ingress"])
        lines.append(f"  ingress  {first['ingress']:<22} echo 'test.hi|0|1|hello' | nc -N {nc}")
    if "control" in first:
        nc = _nc(first["control"])
        lines.append(f"  control  {first['control']:<22} echo GET_ACK | nc -N {nc}")
    if "http" in first:
        lines.append(f"  http     {first['http']:<22} curl http://{first['http']}/metrics")
    others = {"advertised_http", *(name for name in first if name.endswith("_tls"))}
    lines += [f"  {name:<8} {address}" for name, address in first.items() if name in others]
    return "\n".join(lines)
