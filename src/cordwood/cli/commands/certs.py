"""``cordwood certs``: a small certificate authority for a lab."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Certificates for TLS listeners.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)


@app.callback()
def _group() -> None:
    """Keep ``init`` a subcommand."""


@app.command("init")
def init(
    directory: Annotated[Path, typer.Argument(help="Where the files go; made if missing.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or address the server is reached by; repeat for more."),
    ] = None,
    days: Annotated[int, typer.Option(help="How long the certificates hold.", min=1)] = 365,
    force: Annotated[bool, typer.Option(help="Replace files that are there.")] = False,
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
