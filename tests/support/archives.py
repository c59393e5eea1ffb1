"""Real bundles and manifests without Spark: what a job would leave, right or wrong."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from cordwood.client.http import HttpClient
from cordwood.client.kafka import KafkaClient
from cordwood.client.storage import open_storage
from cordwood.decide.archive import (
    Entry,
    Span,
    bundle_name,
    genesis,
    seal_entry,
    topic_archive_name,
)
from cordwood.model import TopicPartition
from cordwood.pipeline.archive.bundle_writer import write_bundle
from cordwood.pipeline.archive.topic_archive import TopicArchive
from cordwood.pipeline.source.segment_files import Chunk
from cordwood.testing import Broker


class HandMade:
    """A topic's archive, written as a job writes it."""

    def __init__(self, broker: Broker, place: Path | str, topic: str = "t") -> None:
        self.broker = broker
        self.topic = topic
        self.topic_id = HttpClient(broker.http).get("/api/archive", topic=topic)["id"]
        self.topic_archive = TopicArchive(
            open_storage(str(place)), topic_archive_name(topic, self.topic_id)
        )
        self.entries: list[Entry] = []

    def add(self, *spans: tuple[int, int], data: bytes | None = None, **facts: Any) -> list[dict]:
        """Bundles of these offsets, in place and entered; what the broker is told of them.

        ``data`` are other batches than the log's, ``facts`` what an entry says differently.
        """
        return [self._add(Span(*span), data, facts) for span in spans]

    def _add(self, span: Span, data: bytes | None, facts: dict[str, Any]) -> dict[str, Any]:
        tp = TopicPartition(self.topic, 0)
        file = io.BytesIO()
        chunks = self._chunks(tp, span) if data is None else [Chunk(data, *span)]
        found = write_bundle(file, tp, span, chunks, lines=False)
        name = bundle_name(0, span)
        self.topic_archive.storage.put(
            f"{self.topic_archive.home}/{name}", io.BytesIO(file.getvalue())
        )
        said = {
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
            **facts,
        }
        self.entries.append(seal_entry(Entry(**said)))
        self.topic_archive.write_manifest(self.entries)
        return self.told(self.entries[-1])

    def told(self, entry: Entry) -> dict[str, Any]:
        """What a job tells the broker of an entry."""
        return {
            "start_offset": entry.span.start,
            "end_offset": entry.span.end,
            "name": f"{self.topic_archive.home}/{entry.bundle}",
            "sha256": entry.sha256,
            "link": entry.link,
            "place": self.topic_archive.storage.place,
        }

    def path(self, bundle: dict[str, Any]) -> Path:
        """Where the file of a bundle is."""
        return Path(self.topic_archive.storage.place) / bundle["name"]

    def _chunks(self, tp: TopicPartition, span: Span) -> list[Chunk]:
        with KafkaClient(self.broker.kafka) as client:
            data = bytes(client.fetch({tp: span.start}, max_wait_ms=0)[tp].records or b"")
        return [Chunk(data, *span)]
