"""``cordwood certs``: a small certificate authority for a lab."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cordwood.cli.options.arguments import command_group

app = command_group("Certificates for TLS listeners.")


@app.callback()
def _group() -> None:
    """Keep ``init`` a subcommand."""


@app.command("init")
def init(
    directory: Annotated[
        Path, typer.Argument(help="The directory for the files; created if missing.", metavar="DIR")
    ],
    host: Annotated[
        list[str] | None,
        typer.Option(help="A host name or address of the server; repeat for more."),
    ] = None,
    days: Annotated[
        int, typer.Option(help="How many days the certificates are valid.", min=1)
    ] = 365,
    force: Annotated[bool, typer.Option(help="Replace existing files.")] = False,
) -> None:
    """Create a CA, a server and a client certificate: enough for mutual TLS in a lab."""
    from cordwood.server.certs import write_lab_certificates

    hosts = host or ["localhost", "127.0.0.1", "::1"]
    paths = write_lab_certificates(directory, hosts, days, replace=force)
    for path in paths:
        typer.echo(path)
    typer.echo(
        f"\nServe with TLS, for clients that hold a certificate of this CA:\n"
        f"  cordwood serve --kafka-tls 127.0.0.1:9093 --tls-cert {directory}/server.pem "
        f"--tls-key {directory}/server.key --tls-client-ca {directory}/ca.pem",
        err=True,
    )
