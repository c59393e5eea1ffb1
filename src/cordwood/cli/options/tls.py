"""The TLS options of every command that connects to a broker, and what they mean together.

A command declares only ``--broker``. ``add_tls_options`` gives it the options below, and the value
of its ``--broker`` says how to connect: a ``BrokerTarget``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from cordwood.tls import ClientTls

META = "cordwood.tls"  # where a context keeps the values of the options


@dataclass(frozen=True, slots=True)
class BrokerTarget:
    """The broker that a command connects to: its Kafka address, and how to use TLS, if at all."""

    address: str
    tls: ClientTls | None = None

    def __str__(self) -> str:
        """The address, as a user writes it."""
        return self.address


def _declare(
    tls: Annotated[
        bool | None,
        typer.Option(
            "--tls/--no-tls",
            envvar="CORDWOOD_TLS",
            help="Connect with TLS. [default: with TLS if --tls-ca is given]",
            show_default=False,
        ),
    ] = None,
    tls_ca: Annotated[
        str,
        typer.Option(
            envvar="CORDWOOD_TLS_CA",
            help="The CAs that may have signed the broker's certificate (PEM). [default: the "
            "system's]",
            metavar="FILE",
            show_default=False,
        ),
    ] = "",
    tls_cert: Annotated[
        str,
        typer.Option(
            envvar="CORDWOOD_TLS_CLIENT_CERT",
            help="The certificate to show to a broker that asks for one (PEM).",
            metavar="FILE",
            show_default=False,
        ),
    ] = "",
    tls_key: Annotated[
        str,
        typer.Option(
            envvar="CORDWOOD_TLS_CLIENT_KEY",
            help="The key of that certificate (PEM).",
            metavar="FILE",
            show_default=False,
        ),
    ] = "",
    tls_pinned: Annotated[
        str,
        typer.Option(
            envvar="CORDWOOD_TLS_PINNED",
            help="The only certificate to trust, under any name; for supervisors.",
            hidden=True,
            metavar="PEM",
        ),
    ] = "",
) -> None:
    """Declares the options; never called."""
    del tls, tls_ca, tls_cert, tls_key, tls_pinned


def add_tls_options(command: Any) -> None:
    """Add the options to a command that has ``--broker``, and to all such subcommands."""
    for child in getattr(command, "commands", {}).values():
        add_tls_options(child)
    if any(param.name == "broker" for param in command.params):
        declared = typer.Typer(add_completion=False, rich_markup_mode=None)
        declared.command()(_declare)
        command.params += [
            _kept(param)
            for param in typer.main.get_command(declared).params
            if param.name != "help"
        ]


def _kept(param: Any) -> Any:
    """Make an option leave its value in the context, before ``--broker`` is read."""
    param.expose_value, param.is_eager = False, True
    param.callback = lambda ctx, own, value: ctx.meta.setdefault(META, {}).update({own.name: value})
    return param


def with_tls(ctx: typer.Context, broker: BrokerTarget | None) -> BrokerTarget | None:
    """Return the target with the TLS options of the command."""
    return None if broker is None else replace(broker, tls=_client_tls(ctx))


def _client_tls(ctx: typer.Context) -> ClientTls | None:
    """Return how to connect; without --tls or a CA, connections are not encrypted."""
    given = ctx.meta.get(META, {})
    wanted, ca, pinned = given.get("tls"), given.get("tls_ca"), given.get("tls_pinned")
    if not (wanted if wanted is not None else ca or pinned):
        _refuse_alone(ctx, given)
        return None
    from cordwood.tls import ClientTls

    if pinned:  # the broker's own child: it trusts that one certificate, under any name
        return ClientTls(pinned, given["tls_cert"], given["tls_key"], verify_host=False)
    return ClientTls(ca or "", given["tls_cert"], given["tls_key"])


def _refuse_alone(ctx: typer.Context, given: dict[str, Any]) -> None:
    """Refuse a certificate on the command line that would not be used."""
    for name in ("tls_cert", "tls_key"):
        source = ctx.get_parameter_source(name)
        if given.get(name) and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                "has no effect without TLS; add --tls-ca FILE, or --tls for the system's CAs",
                param_hint="--" + name.replace("_", "-"),
            )
