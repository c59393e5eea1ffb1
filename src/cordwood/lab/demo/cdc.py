"""Generate the changelog of a users table: inserts, updates, deletes, a schema change, poison.

Every change is a record with the routing key ``users.<id>`` and the row as JSON, or a null value if
the row is deleted. A poison record is the *last* change of a user under a broken key, so the table
is wrong until it is repaired. The expected table is kept next to the changes.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

CITIES = ("Lisbon", "Osaka", "Quito", "Turku", "Accra", "Perth", "Leeds", "Natal")
PLANS = ("free", "team", "pro")
SCHEMA_CHANGE_AT = 0.6  # share of the changes after which rows have the column plan


class Change(NamedTuple):
    """One record of the changelog."""

    key: bytes
    value: bytes | None
    is_poison: bool = False


class Changelog(NamedTuple):
    """All changes in order, and the table that results from them."""

    changes: list[Change]
    truth: dict[int, dict[str, Any]]


def make_changelog(seed: int, users: int, changes: int, poison: int) -> Changelog:
    """Generate ``changes`` records on ``users`` rows; the keys are skewed, as in real tables."""
    chance = random.Random(seed)  # noqa: S311 - the same seed gives the same story
    truth: dict[int, dict[str, Any]] = {}
    made: list[tuple[int, bytes | None]] = []
    for number in range(changes):
        user = min(int(chance.expovariate(4 / users)), users - 1)
        has_plan = number >= SCHEMA_CHANGE_AT * changes
        row = _changed(chance, user, truth.get(user), has_plan=has_plan)
        if row is None:
            truth.pop(user, None)
            made.append((user, None))
        else:
            truth[user] = row
            made.append((user, _encode(row)))
    last = {user: number for number, (user, _) in enumerate(made)}
    candidates = sorted(number for number in last.values() if made[number][1] is not None)
    spoiled = set(chance.sample(candidates, min(poison, len(candidates))))
    return Changelog(
        [
            Change(_broken_key(user) if number in spoiled else b"users.%d" % user, value,
                   number in spoiled)
            for number, (user, value) in enumerate(made)
        ],
        truth,
    )  # fmt: skip


def state_hash(rows: Iterable[Mapping[str, Any]]) -> str:
    """A short hash of a table that does not depend on the order of rows."""
    lines = sorted(json.dumps(dict(row), sort_keys=True) for row in rows)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _changed(
    chance: random.Random, user: int, row: dict[str, Any] | None, *, has_plan: bool
) -> dict[str, Any] | None:
    """The row after one more change; None if it is deleted."""
    if row is not None and chance.random() < 0.02:
        return None
    if row is None:
        row = {"id": user, "name": f"user {user}", "city": chance.choice(CITIES), "balance": 0}
    row = {**row, "balance": row["balance"] + chance.randrange(-50, 150)}
    if chance.random() < 0.1:
        row["city"] = chance.choice(CITIES)
    if has_plan:
        row.setdefault("plan", chance.choice(PLANS))
    return row


def _broken_key(user: int) -> bytes:
    """A key that yields no valid topic name: it has a slash instead of the dot."""
    return b"users/%d" % user


def _encode(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, sort_keys=True).encode()
