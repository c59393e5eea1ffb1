"""Command lines for tests that run every command that contacts a broker."""

from __future__ import annotations

ASKING = [  # one line for every command that contacts a broker, in the order of --help
    "topic create t",
    "topic list",
    "topic describe t",
    "topic alter t -c retention.ms=1",
    "topic delete t --yes",
    "topic accept-loss t 0 --yes",
    "produce t input",
    "consume t",
    "tail t",
    "cat t",
    "group list",
    "group describe g",
    "group seek g --to start",
    "group delete g --yes",
    "reader list",
    "reader register t r",
    "reader reset t r 0",
    "reader drain r",
    "reader remove t r --yes",
    "route set a t",
    "route list",
    "route remove a",
    "pipeline status",
    "pipeline deliveries",
    "pipeline discard q --yes",
    "segment scrub t",
    "segment compress t",
    "segment accept-damage t 0 0 --yes",
    "check",
    "compact t",
    "dlq ls",
    "dlq sample",
    "dlq replay",
    "dlq replays",
    "audit",
    "table t --out out",
    "sql 'select 1'",
    "archive create t",
    "archive ls",
    "archive verify",
    "archive restore t --to u",
]
ON_SPARK = [  # those that start Spark once they have reached the broker
    line
    for line in ASKING
    if line.split()[0] in {"compact", "audit", "table", "sql"}
    or line.split()[:2] in [["dlq", "replay"], ["archive", "create"], ["archive", "restore"]]
]
