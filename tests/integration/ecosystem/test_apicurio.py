"""Apicurio Registry keeps schemas in a topic, and finds them again after a restart."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import pytest

from support.ecosystem import JARS, Jvm, java, needs_program, wait_until

pytestmark = [needs_program("apicurio"), pytest.mark.slow, pytest.mark.timeout(900)]
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
CONFLUENT = "/apis/ccompat/v7"  # the interface of Confluent's registry, which clients speak


def call(address: str, path: str, body: object | None = None) -> dict[str, object]:
    """Send a request to the registry; returns its JSON."""
    request = urllib.request.Request(
        address + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)  # type: ignore[no-any-return]


def address_of(running: Jvm) -> str:
    """Wait until the registry has read its topic, and return its address."""
    listening = re.compile(r"Listening on: (http://127\.0\.0\.1:\d+)")

    def is_ready() -> bool:
        chosen = listening.search("\n".join(running.printed()))
        try:
            with urllib.request.urlopen(f"{chosen[1]}/health/ready", timeout=5) as reply:
                return bool(reply.status == 200)
        except (OSError, TypeError):  # not yet
            return False

    wait_until(is_ready, running)
    chosen = listening.search("\n".join(running.printed()))
    assert chosen
    return chosen[1]


def test_a_schema_survives_a_restart_of_the_registry(broker, tmp_path: Path):
    """A registered schema has the same id in a second registry that reads the same topic."""
    environ = {
        "APICURIO_STORAGE_KIND": "kafkasql",
        "APICURIO_KAFKASQL_BOOTSTRAP_SERVERS": broker.kafka,
        "QUARKUS_HTTP_HOST": "127.0.0.1",
        "QUARKUS_HTTP_PORT": "0",
        "QUARKUS_LOG_CATEGORY__IO_QUARKUS__LEVEL": "INFO",  # it tells the port
    }
    (program,) = (JARS / "apicurio").glob("*-runner.jar")
    command = ("", "-jar", program)
    subject = f"{CONFLUENT}/subjects/orders-value/versions"
    log = tmp_path / "apicurio.log"
    with java(*command, log=log, env=environ) as first:
        schema = {"schema": json.dumps(ORDER)}
        registered = call(address_of(first), subject, schema)
        first.kill()
    with java(*command, log=log, env=environ) as second:
        found = call(address_of(second), f"{CONFLUENT}/schemas/ids/{registered['id']}")
    assert json.loads(str(found["schema"])) == ORDER
