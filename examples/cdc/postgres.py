"""A PostgreSQL server in a temporary directory, on a free port of 127.0.0.1.

The server programs are the installed ones, or Debian's packages unpacked below a directory: they
are downloaded, not installed, and no service of the machine is started or changed.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from processes import ExampleError, last_lines, running

START_S = 60
DATABASE = "postgres"
SUPERUSER = "postgres"
PROGRAMS = ("initdb", "postgres", "psql")
MISSING = (
    "PostgreSQL's server programs are missing, and {why}. Install them (Debian: apt install "
    "postgresql; other systems: the package with initdb and postgres), and put them on PATH"
)


@dataclass(frozen=True)
class Postgres:
    """A running server."""

    programs: Path
    environ: dict[str, str]
    port: int
    password: str

    def sql(self, statements: str) -> str:
        """Run statements in ``psql`` until the first error; returns what they print."""
        connection = f"host=127.0.0.1 port={self.port} user={SUPERUSER} dbname={DATABASE}"
        done = subprocess.run(
            [self.programs / "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", connection],
            input=statements,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **self.environ, "PGPASSWORD": self.password, "PGOPTIONS": ""},
        )
        if done.returncode:
            raise ExampleError(f"psql failed: {done.stderr.strip()}")
        return done.stdout


def find_programs(packages: Path) -> Path:
    """Return the directory of ``initdb``, ``postgres`` and ``psql``; unpack Debian's if needed."""
    on_path = [Path(place) for place in os.environ.get("PATH", "").split(os.pathsep) if place]
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for place in [*on_path, *installed]:
        if all((place / program).exists() for program in PROGRAMS):
            return (place / "postgres").resolve().parent
    return unpacked(packages)


def unpacked(packages: Path) -> Path:
    """Download Debian's PostgreSQL, and what it needs, into ``packages``; nothing is installed."""
    places = sorted(packages.glob("unpacked/usr/lib/postgresql/*/bin"), reverse=True)
    if places:
        return places[0]
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise ExampleError(MISSING.format(why="this is not Debian, so they cannot be downloaded"))
    print("downloading Debian's PostgreSQL packages; they are unpacked, not installed", flush=True)
    packages.mkdir(parents=True, exist_ok=True)
    depends = printed(["apt-cache", "depends", "postgresql"]).split()
    server = next(word for word in depends if word.startswith("postgresql-"))
    client = server.replace("postgresql-", "postgresql-client-")
    apt = ["apt-get", "-q", "-s", "--no-install-recommends", "install", server, client]
    planned = [line.split()[1] for line in printed(apt).splitlines() if line.startswith("Inst ")]
    needed = {server, client, "libpq5", *planned}
    wanted = [name for name in needed if not name.startswith("libllvm")]  # only JIT needs it
    printed(["apt-get", "-q", "download", *wanted], cwd=packages)
    for package in packages.glob("*.deb"):
        printed(["dpkg", "-x", str(package), str(packages / "incoming")])
        package.unlink()
    (packages / "incoming").rename(packages / "unpacked")
    return next(iter(packages.glob("unpacked/usr/lib/postgresql/*/bin")))


def printed(command: list[str], cwd: Path | None = None) -> str:
    """Return the output of a command of Debian's package tools."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode:
        reason = f"`{' '.join(command[:3])} …` failed: {done.stderr.strip()}"
        raise ExampleError(MISSING.format(why=reason))
    return done.stdout


def library_path(programs: Path) -> dict[str, str]:
    """Return the environment that makes unpacked programs find unpacked libraries."""
    root = programs.parents[4]
    if root == Path("/"):
        return {}
    return {"LD_LIBRARY_PATH": os.pathsep.join(map(str, root.glob("usr/lib/*-linux-gnu*")))}


def server_account() -> str | None:
    """Return the user to run as: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


@contextlib.contextmanager
def postgres(packages: Path) -> Iterator[Postgres]:
    """Run a new, empty server with logical replication; its data is deleted at the end."""
    programs = find_programs(packages)
    environ = library_path(programs)
    account = server_account()
    with tempfile.TemporaryDirectory(prefix="cordwood-cdc-pg-") as directory:
        home = Path(directory)
        data, log = home / "data", home / "postgres.log"
        password = secrets.token_hex(16)
        secret = home / "password"
        secret.write_text(password)
        if account:
            for path in (home, secret):
                shutil.chown(path, account)
        initdb = (programs / "initdb", "-D", data, "-U", SUPERUSER, "-E", "UTF8", "--locale=C",
                  "--auth=scram-sha-256", f"--pwfile={secret}", "--no-sync")  # fmt: skip
        with running(*initdb, log=log, user=account, env=environ) as making:
            if making.wait():
                raise ExampleError(f"initdb failed:\n{last_lines(log)}")
        port = free_port()
        settings = {
            "wal_level": "logical",  # what Debezium needs
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": "",
            "fsync": "off",  # the data is deleted afterwards
        }
        options = [word for item in settings.items() for word in ("-c", "=".join(item))]
        command = (programs / "postgres", "-D", data, *options)
        with running(*command, log=log, user=account, env=environ, stop=signal.SIGINT) as process:
            server = Postgres(programs, environ, port, password)
            wait_until_ready(server, process, log)
            yield server


def wait_until_ready(server: Postgres, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when the server answers a query."""
    give_up = time.monotonic() + START_S
    while True:
        try:
            server.sql("select 1")
        except ExampleError as error:
            if process.poll() is not None or time.monotonic() > give_up:
                raise ExampleError(f"PostgreSQL did not start:\n{last_lines(log)}") from error
            time.sleep(0.2)
        else:
            return


def free_port() -> int:
    """Return a port of 127.0.0.1 that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
