"""Kafka Connect with Debezium's PostgreSQL connector, in one process (standalone mode)."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from postgres import DATABASE, SUPERUSER, Postgres
from processes import ExampleError, running

ROOT = Path(__file__).resolve().parents[2]
FETCH = ROOT / "scripts" / "ecosystem_jars.sh"
PREFIX = "shop"  # Debezium names topics PREFIX.SCHEMA.TABLE


def fetch_jars(directory: Path) -> None:
    """Fetch Connect and Debezium with Maven, unless they are there."""
    if all((directory / name / ".artifacts").exists() for name in ("connect", "debezium")):
        return
    if shutil.which("mvn") is None:
        raise ExampleError(
            f"Kafka Connect and Debezium are not in {directory}, and Maven, which fetches them, is "
            "missing. Install it (Debian: apt install maven), or run "
            f"`{FETCH.relative_to(ROOT)} DIR connect debezium` elsewhere, copy DIR here, and set "
            "CORDWOOD_ECOSYSTEM_JARS=DIR"
        )
    done = subprocess.run([FETCH, directory, "connect", "debezium"], check=False)
    if done.returncode:
        raise ExampleError("Maven could not fetch Kafka Connect and Debezium: see above")


def java() -> Path:
    """Return a Java of version 17 or newer: the one that Spark uses too."""
    found = subprocess.run(
        [sys.executable, "-m", "cordwood.pipeline.runtime.java"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        raise ExampleError(found.stderr.strip().splitlines()[-1])
    return Path(found.stdout.strip()) / "bin" / "java"


def worker_settings(broker: str, home: Path) -> dict[str, str]:
    """Settings of the Connect worker: where the broker is, and how records are written."""
    return {
        "bootstrap.servers": broker,
        "plugin.path": str(home / "plugins"),
        "plugin.discovery": "service_load",
        "listeners": "http://127.0.0.1:0",
        "offset.storage.file.filename": str(home / "connect.offsets"),
        "offset.flush.interval.ms": "1000",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "key.converter.schemas.enable": "false",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
    }


def connector_settings(database: Postgres, table: str) -> dict[str, str]:
    """Settings of Debezium: which table to follow, and what a change looks like as a record."""
    return {
        "name": "customers",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.hostname": "127.0.0.1",
        "database.port": str(database.port),
        "database.user": SUPERUSER,
        "database.password": database.password,
        "database.dbname": DATABASE,
        "topic.prefix": PREFIX,
        "table.include.list": table,
        "decimal.handling.mode": "string",  # exact, where a double would round
        # The value is the new row, and a deletion is a tombstone: what a compacted topic wants.
        "transforms": "row",
        "transforms.row.type": "io.debezium.transforms.ExtractNewRecordState",
        # (With the mode ``tombstone``, JsonConverter writes the text "null" instead.)
        "transforms.row.delete.tombstone.handling.mode": "delete-to-tombstone",
    }


@contextlib.contextmanager
def connect(broker: str, database: Postgres, table: str, *, jars: Path, home: Path) -> Iterator[
    subprocess.Popen[bytes]
]:  # fmt: skip
    """Run the worker and its connector; a second run goes on where the first one stopped."""
    worker, connector, log = (home / f"connect.{kind}" for kind in ("worker", "connector", "log"))
    plugin = home / "plugins" / "debezium"  # a directory of jars, as Connect wants it
    if not plugin.exists():
        plugin.parent.mkdir()
        plugin.symlink_to(jars / "debezium")
    write_properties(worker, worker_settings(broker, home))
    write_properties(connector, connector_settings(database, table))
    classpath = f"{jars / 'connect'}{os.sep}*"
    main = "org.apache.kafka.connect.cli.ConnectStandalone"
    command = (java(), "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", classpath, main)
    with running(*command, worker, connector, log=log) as process:
        yield process


def write_properties(path: Path, settings: dict[str, str]) -> None:
    """Write a Java properties file that only this user can read: it holds a password."""
    path.touch(mode=0o600)
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


def failure(home: Path) -> str | None:
    """Return Connect's errors so far, if there are any; it goes on without a failed connector.

    Plugins that it cannot load (Debezium brings a converter for Avro, whose jar is missing) do not
    matter.
    """
    lines = (home / "connect.log").read_text(errors="replace").splitlines()
    errors = [line for line in lines if " ERROR " in line and "PluginScanner" not in line]
    return "\n".join(errors[:10]) or None
