"""Bundles and manifests made without Spark, valid or wrong on purpose."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from cordwood.client.kafka import KafkaClient
from cordwood.client.storage import open_storage
from cordwood.client.topic_archive import TopicArchive
from cordwood.decide.archive import (
    Entry,
    Span,
    bundle_name,
    genesis,
    seal_entry,
    topic_archive_name,
)
from cordwood.log.format.bundle_writer import write_bundle
from cordwood.model import TopicPartition
from cordwood.testing import Broker
from support.http import JsonClient


class HandMade:
    """A topic's archive, written as a job writes it."""

    def __init__(self, broker: Broker, place: Path | str, topic: str = "t") -> None:
        self.broker = broker
        self.topic = topic
        self.topic_id = JsonClient(broker.http).get("/api/archive", topic=topic)["id"]
        self.topic_archive = TopicArchive(
            open_storage(str(place)), topic_archive_name(topic, self.topic_id)
        )
        self.entries: list[Entry] = []

    def add(self, *spans: tuple[int, int], data: bytes | None = None, **changes: Any) -> list[dict]:
        """Write bundles of these offset ranges, and return the reports for the broker.

        ``data`` replaces the log's batches, and ``facts`` replaces fields of the manifest entries.
        """
        return [self._add(Span(*span), data, changes) for span in spans]

    def _add(self, span: Span, data: bytes | None, changes: dict[str, Any]) -> dict[str, Any]:
        tp = TopicPartition(self.topic, 0)
        file = io.BytesIO()
        chunks = self._chunks(tp, span) if data is None else [data]
        found = write_bundle(file, tp, span, chunks, lines=False)
        name = bundle_name(0, span)
        self.topic_archive.storage.put(
            f"{self.topic_archive.home}/{name}", io.BytesIO(file.getvalue())
        )
        options = {
            "number": len(self.entries) + 1,
            "bundle": name,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "partition": 0,
            "first_seq": span.start + 1,
            "last_seq": span.end,
            "archived": "2026-01-01T00:00:00+00:00",
            "cursors": {},
            "parquet_sha256": None,
            "previous": (
                self.entries[-1].link if self.entries else genesis(self.topic, self.topic_id)
            ),
            **found._asdict(),
            **changes,
        }
        self.entries.append(seal_entry(Entry(**options)))
        self.topic_archive.write_manifest(self.entries)
        return self.as_sent(self.entries[-1])

    def as_sent(self, entry: Entry) -> dict[str, Any]:
        """Return what a job reports to the broker about an entry."""
        return {
            "start_offset": entry.span.start,
            "end_offset": entry.span.end,
            "name": f"{self.topic_archive.home}/{entry.bundle}",
            "sha256": entry.sha256,
            "link": entry.link,
            "place": self.topic_archive.storage.place,
        }

    def path(self, bundle: dict[str, Any]) -> Path:
        """Return the path of a bundle's file."""
        return Path(self.topic_archive.storage.place) / bundle["name"]

    def _chunks(self, tp: TopicPartition, span: Span) -> list[bytes]:
        with KafkaClient(self.broker.kafka) as client:
            return [bytes(client.fetch({tp: span.start}, max_wait_ms=0)[tp].records or b"")]
