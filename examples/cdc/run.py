"""Change data capture, whole: PostgreSQL → Debezium → a compacted topic → a table in Parquet.

    python examples/cdc/run.py

Starts PostgreSQL, a cordwood broker and Kafka Connect with Debezium in temporary directories,
changes a table, builds it again from the topic with ``cordwood table``, and compares the two row by
row. Exits with 1 if they differ, and ends and deletes all it started, also after Ctrl-C.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from connect import PREFIX, ROOT, connect, failure, fetch_jars, java
from postgres import Postgres, postgres
from processes import ExampleError

from cordwood.testing import Broker

CUSTOMERS = 1000
CHANGES = 600
ARRIVE_S = 300
TABLE = "public.customers"
TOPIC = f"{PREFIX}.{TABLE}"
CREATE = """
create table customers (
    id bigint primary key, name text not null, city text, balance numeric(12, 2) not null,
    active boolean not null, updated timestamptz not null default clock_timestamp()
);
"""
MARKER = 0  # the id of a row that is changed last in every round
ROWS = """
select json_build_object('id', id, 'name', name, 'city', city, 'balance', balance::text,
    'active', active,
    'updated', to_char(updated at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))
from customers order by id;
"""
CITIES = ("London", "Paris", "Łódź", "Σύρος", "北京", 'it\'s; a "town"', None)


def main() -> int:
    """Run the example; returns the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    given = os.environ.get("CORDWOOD_ECOSYSTEM_JARS")
    cache = Path(given or ROOT / ".venv" / "ecosystem").absolute()
    try:
        java()
        fetch_jars(cache)
        with (
            tempfile.TemporaryDirectory(prefix="cordwood-cdc-") as home,
            postgres(cache / "postgresql") as database,
            Broker(Path(home) / "data") as broker,
        ):
            Story(database, broker, jars=cache, home=Path(home)).tell()
    except ExampleError as error:
        print(f"cdc: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("cdc: interrupted; everything is stopped and deleted", file=sys.stderr)
        return 130
    print("proved: the table built from the topic equals the table in PostgreSQL")
    return 0


class Story:
    """The steps of the example, in order."""

    def __init__(self, database: Postgres, broker: Broker, *, jars: Path, home: Path) -> None:
        self.database = database
        self.broker = broker
        self.jars = jars
        self.home = home
        self.offset = 0  # the next record to read
        self.ids = list(range(1, CUSTOMERS + 1))
        self.dice = random.Random(15)  # noqa: S311 - the same changes in every run

    def tell(self) -> None:
        """Snapshot, changes with a crash of Connect between them, compaction; compare each time."""
        version = self.database.sql("show server_version").strip()
        print(f"PostgreSQL {version}, and cordwood at {self.broker.kafka}", flush=True)
        self.cordwood("topic", "create", TOPIC, "-c", "cleanup.policy=compact")
        self.database.sql(CREATE + "".join(map(inserted, [MARKER, *self.ids])))

        with self.connector() as process:
            self.wait_for_round("snapshot")
            print(f"Debezium took a snapshot: {count(self.offset, 'record')}", flush=True)
            self.compare("table")
            self.change()
            self.wait_for_round("changes")
            self.change()
            process.kill()  # SIGKILL: what it did not flush it sends again after its start
        print(f"Kafka Connect killed after {count(self.offset, 'record')}", flush=True)
        self.change()  # while nobody follows the table
        with self.connector():
            self.wait_for_round("after the crash")
        print(f"Kafka Connect went on where it was: {count(self.offset, 'record')}", flush=True)
        self.compare("table")

        before = self.offset
        self.cordwood("compact", TOPIC, "--now", "-q")
        kept = len(self.cordwood("consume", TOPIC, "-e", "-f", "%o\n").splitlines())
        print(f"compaction kept {kept} of {count(before, 'record')}", flush=True)
        if kept >= before:
            raise ExampleError("compaction removed nothing")
        self.compare("table-of-the-compacted-topic")

    def connector(self) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        """Kafka Connect with Debezium, for a ``with`` block."""
        return connect(self.broker.kafka, self.database, TABLE, jars=self.jars, home=self.home)

    def cordwood(self, *words: str) -> str:
        """Run a command of the ``cordwood`` command line, as in a shell, and return its output."""
        command = [sys.executable, "-m", "cordwood", *words, "-b", self.broker.kafka]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.home)
        if done.returncode:
            raise ExampleError(f"`cordwood {' '.join(words)}` failed: {done.stderr.strip()}")
        return done.stdout

    def change(self) -> None:
        """Insert, update, delete and renumber rows, some together and some rolled back."""
        script = [self.one_change() for _ in range(CHANGES // 3)]
        script.append("begin; update customers set name = 'nobody'; rollback;")
        a, b, c = self.dice.sample(self.ids, 3)
        script.append(f"begin; {updated(a)} {updated(b)} {deleted(c)} commit;")
        self.ids.remove(c)
        self.database.sql("\n".join(script))

    def one_change(self) -> str:
        """Choose a change; ``ids`` follows it."""
        kind = self.dice.choice(["insert", "update", "update", "update", "delete", "renumber"])
        new = max(self.ids) + 1
        if kind == "insert":
            self.ids.append(new)
            return inserted(new)
        place = self.dice.randrange(len(self.ids))
        if kind == "update":
            return updated(self.ids[place])
        old = self.ids.pop(place)
        if kind == "delete":
            return deleted(old)
        self.ids.append(new)
        return f"update customers set id = {new} where id = {old};"

    def wait_for_round(self, name: str) -> None:
        """Change the marker, and read the topic until it comes: one partition keeps the order."""
        self.database.sql(f"update customers set name = '{name}' where id = {MARKER}")
        for record in self.records():
            self.offset = record["offset"] + 1
            row = json.loads(record["value"] or "{}")
            if row.get("id") == MARKER and row["name"] == name:
                return
        reason = failure(self.home) or "Kafka Connect reported no error"
        raise ExampleError(f"the change {name!r} did not arrive in {ARRIVE_S} s: {reason}")

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the records from ``offset`` on, as they come; ends after ARRIVE_S."""
        command = [sys.executable, "-m", "cordwood", "consume", TOPIC, "-J", "-q"]
        command += ["-o", str(self.offset), "-b", self.broker.kafka]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            watchdog = threading.Timer(ARRIVE_S, process.kill)
            watchdog.start()
            try:
                assert process.stdout is not None
                yield from map(json.loads, process.stdout)
            finally:
                watchdog.cancel()
                process.kill()

    def compare(self, name: str) -> None:
        """Build the table from the topic, and compare every row with PostgreSQL's."""
        self.cordwood("table", TOPIC, "--out", name, "-q")
        ours = rows_of_parquet(self.home / name / "current")
        theirs = {row["id"]: row for row in map(comparable, self.database.sql(ROWS).splitlines())}
        wrong = [key for key in sorted({*ours, *theirs}) if ours.get(key) != theirs.get(key)]
        if wrong:
            for key in wrong[:5]:
                print(f"id {key}: PostgreSQL {theirs.get(key)}, table {ours.get(key)}")
            raise ExampleError(f"{count(len(wrong), 'row')} of {len(theirs)} differ")
        if sorted(theirs) != sorted([MARKER, *self.ids]):
            raise ExampleError("PostgreSQL does not have the rows that this program wrote")
        print(f"`cordwood table {TOPIC}`: {count(len(theirs), 'row')}, all equal", flush=True)


def rows_of_parquet(directory: Path) -> dict[int, dict[str, Any]]:
    """Return the rows by id; the keys must agree with the rows and occur once."""
    import pyarrow.parquet as pq

    rows: dict[int, dict[str, Any]] = {}
    for record in pq.read_table(directory).to_pylist():
        row = comparable(record["value"])
        if json.loads(record["key"]) != {"id": row["id"]} or row["id"] in rows:
            raise ExampleError(f"the key {record['key']!r} is not that of the row {row}")
        rows[row["id"]] = row
    return rows


def comparable(text: str | bytes) -> dict[str, Any]:
    """Return a row from JSON, its time as a time: PostgreSQL and Debezium write it differently."""
    row: dict[str, Any] = json.loads(text)
    return {**row, "updated": datetime.fromisoformat(row["updated"])}


def inserted(key: int) -> str:
    """Return a statement that inserts a row."""
    city = CITIES[key % len(CITIES)]
    quoted = "null" if city is None else "'" + city.replace("'", "''") + "'"
    return (
        "insert into customers (id, name, city, balance, active) "
        f"values ({key}, 'customer {key}', {quoted}, {key}.10, {key % 3 == 0});\n"
    )


def updated(key: int) -> str:
    """Return a statement that updates a row."""
    return (
        "update customers set balance = balance * 2 - 7.35, active = not active, "
        f"updated = clock_timestamp() where id = {key};"
    )


def deleted(key: int) -> str:
    """Return a statement that deletes a row."""
    return f"delete from customers where id = {key};"


def count(number: int, noun: str) -> str:
    """Return a number and its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


if __name__ == "__main__":
    sys.exit(main())
