"""Scenario: cold storage; records move to verifiable archive bundles and are restored."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

from cordwood.client import Client, Producer
from cordwood.errors import CordwoodError
from cordwood.lab.scenarios.stage import HOUR_MS, ScenarioRun, read_all

RECORDS = 1000
BUNDLE = 250
CHECK_FAILED = 5


def cold_storage(stage: ScenarioRun) -> None:
    """1,000 consumed records in 4 bundles; reclaimed, verified, tampered with, restored."""
    child = stage.serve(ingress_topic="archive", monitor_interval_ms=str(HOUR_MS))
    control, kafka = child.addresses["control"], child.addresses["kafka"]
    payloads = [f"reel {i:04d}" for i in range(RECORDS)]
    with Client(control) as client, Producer(child.addresses["ingress"], name="deck") as deck:
        client.register("archive", "archivist")
        client.configure("archive", {"cleanup.policy": "consume", "archive.required": "true"})
        deck.send_and_confirm([("archive.reel", payload) for payload in payloads])
        client.cut("archive")
        client.ack("archive", "archivist", RECORDS)
        stage.check(client.reclaim("archive") == 0, "drained records wait for the archive")

        made = stage.run_command(
            "archive", "create", "archive", "--bundle-records", str(BUNDLE), at=kafka
        )
        rows = json.loads(made.stdout)
        stage.check(len(rows) == RECORDS // BUNDLE, "four bundles", bundles=len(rows))
        home = next((stage.directory / "data" / "archive").iterdir())
        _check_manifest(stage, home, payloads)

        stage.check(client.reclaim("archive") == 1, "archived, the segment goes")
        _check_status(stage, client, home.name)
        _check_tampering(stage, home, kafka)
        stage.run_command("archive", "restore", "archive", "--to", "again", at=kafka)
        back = [line.payload for line in read_all(control, "again", RECORDS)]
        stage.check(
            back == [payload.encode() for payload in payloads], "every record is back, in order"
        )


def _check_manifest(stage: ScenarioRun, home: Path, payloads: list[str]) -> None:
    """Check manifest and bundles with only the standard library, as one could in ten years."""
    lines = (home / "manifest.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    spans = [(entry["first_seq"], entry["last_seq"]) for entry in entries]
    wanted = [(first, first + BUNDLE - 1) for first in range(1, RECORDS, BUNDLE)]
    stage.check(spans == wanted, "the manifest is aligned to sequences", spans=spans)
    read: list[str] = []
    for entry in entries:
        data = (home / entry["bundle"]).read_bytes()
        sha256 = hashlib.sha256(data).hexdigest()
        stage.check(sha256 == entry["sha256"], "sha256 recomputed and matched", sha256=sha256[:12])
        read += _payloads(home / entry["bundle"])
    stage.check(read == payloads, "the bundles hold every record once, in order")


def _payloads(bundle: Path) -> list[str]:
    with tarfile.open(bundle) as tar:
        (name,) = [name for name in tar.getnames() if name.endswith(".txt")]
        member = tar.extractfile(name)
        assert member is not None
        return [line.split("|", 5)[5] for line in member.read().decode().splitlines()]


def _check_status(stage: ScenarioRun, client: Client, home: str) -> None:
    status = client.status(600, "archive")
    bundle = f"{home}/0/{501:020d}-{750:020d}.tar.gz"
    stage.check(
        (status.word, status.bundle) == ("ARCHIVED", bundle),
        "GET_STATUS of a reclaimed record names its bundle",
        bundle=status.bundle,
    )
    try:
        with client.subscribe("archive", from_seq=1) as lines:
            next(lines)
        message = "nothing"
    except CordwoodError as error:
        message = str(error)
    stage.check(f"{home}/0/" in message, "SUBSCRIBE from reclaimed history says where it went")


def _check_tampering(stage: ScenarioRun, home: Path, kafka: str) -> None:
    """Tamper with separate copies; ``archive verify`` must find and name each change."""
    bundles = sorted((home / "0").iterdir())
    flipped = bytearray(bundles[1].read_bytes())
    flipped[len(flipped) // 2] ^= 1
    lines = (home / "manifest.jsonl").read_text().splitlines(keepends=True)
    edited = [*lines[:2], lines[2].replace('"records":250', '"records":249'), *lines[3:]]
    reordered = [lines[0], lines[2], lines[1], lines[3]]
    found = {
        "nothing": _verify(stage, home, kafka, {}),
        "a flipped byte": _verify(stage, home, kafka, {f"0/{bundles[1].name}": bytes(flipped)}),
        "a missing bundle": _verify(stage, home, kafka, {f"0/{bundles[2].name}": None}),
        "an edited manifest": _verify(
            stage, home, kafka, {"manifest.jsonl": "".join(edited).encode()}
        ),
        "a reordered manifest": _verify(
            stage, home, kafka, {"manifest.jsonl": "".join(reordered).encode()}
        ),
    }
    problems = {what: {row["problem"] for row in rows} for what, rows in found.items()}
    stage.check(not problems["nothing"], "the archive as written verifies")
    stage.check(problems["a flipped byte"] == {"changed"}, "a flipped byte is found")
    stage.check(problems["a missing bundle"] == {"missing"}, "a missing bundle is found")
    stage.check(problems["an edited manifest"] == {"edited"}, "an edited manifest is found")
    stage.check("order" in problems["a reordered manifest"], "a reordered manifest is found")
    named = found["a flipped byte"][0]["where"]
    stage.check(bundles[1].name in named, "and named", where=named)


def _verify(
    stage: ScenarioRun, home: Path, kafka: str, changes: dict[str, bytes | None]
) -> list[dict[str, Any]]:
    """The findings of ``archive verify`` in a changed copy."""
    copy = stage.directory / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(home, copy / home.name)
    for name, data in changes.items():
        if data is None:
            (copy / home.name / name).unlink()
        else:
            (copy / home.name / name).write_bytes(data)
    expect = CHECK_FAILED if changes else 0
    done = stage.run_command("archive", "verify", "--dest", str(copy), at=kafka, expect=expect)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found
