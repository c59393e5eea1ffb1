"""Put written bundles into place, and report them to the broker, which reads each one.

Also finishes an earlier run that died after it had written the manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from cordwood.client.http import ANSWER_S
from cordwood.client.topic_archive import TopicArchive
from cordwood.config import MIB
from cordwood.decide.archive import Entry, check_known
from cordwood.errors import CorruptionError
from cordwood.pipeline.runtime.broker_api import BrokerApi
from cordwood.protocol.api.archive import ArchivedTopic, Bundle

READ_BYTES_S: Final = 4 * MIB  # slowest rate at which the broker may read a bundle

Warn = Callable[[str], None]


class BundleReporter:
    """Reports the bundles of one topic archive; ``warn`` gets the reason if one is unverified."""

    def __init__(self, api: BrokerApi, topic_archive: TopicArchive, warn: Warn | None) -> None:
        self._api = api
        self._topic_archive = topic_archive
        self._warn = warn or (lambda _: None)

    def check_whole(self, entries: Sequence[Entry], state: ArchivedTopic) -> None:
        """Check that the manifest holds every bundle the broker knows, or the chain would fork."""
        archive = self._topic_archive
        if findings := check_known(entries, archive.known_links(state)):
            first = findings[0]
            raise CorruptionError(
                f"{first.where}: {first.detail} ({archive.home} in {archive.storage.place}); "
                "restore the manifest from a copy, or archive to another place with --dest"
            )

    def finish_earlier(self, entries: Sequence[Entry], state: ArchivedTopic) -> list[Entry]:
        """Finish an earlier run: check, place and report the bundles the broker does not know.

        Returns the entries of those bundles.
        """
        ends = {part.partition: part.archived_end for part in state.partitions}
        left = [entry for entry in entries if entry.span.start >= ends.get(entry.partition, 0)]
        for entry in left:
            if findings := self._topic_archive.check(entry):
                first = findings[0]
                raise CorruptionError(
                    f"an earlier run entered {first.where} in the manifest of "
                    f"{self._topic_archive.home}, but {first.detail}; restore the bundle from a "
                    "copy"
                )
        self._report_unverified(entries, state)
        self.finish(left)
        return left

    def finish(self, entries: Sequence[Entry]) -> None:
        """Move the bundles into place, then report them to the broker."""
        for entry in entries:
            self._topic_archive.place(entry)
        reasons = [reason for entry in entries if (reason := self._report(entry))]
        if reasons:
            self._warn_unverified(reasons[0])

    def _report_unverified(self, entries: Sequence[Entry], state: ArchivedTopic) -> None:
        """Report again the bundles that the broker could not read before: it may be able to now."""
        archive = self._topic_archive
        unverified = {
            bundle.name
            for part in state.partitions
            for bundle in part.bundles
            if bundle.place == archive.storage.place and not bundle.verified
        }
        for entry in entries:
            is_asked = f"{archive.home}/{entry.bundle}" in unverified
            if is_asked and (reason := self._report(entry)):
                self._warn_unverified(reason)
                return  # it cannot read the others either

    def _report(self, entry: Entry) -> str | None:
        """Ask the broker to read and record a bundle; returns why it could not, or None."""
        archive = self._topic_archive
        bundle = Bundle(
            start_offset=entry.span.start,
            end_offset=entry.span.end,
            name=f"{archive.home}/{entry.bundle}",
            sha256=entry.sha256,
            link=entry.link,
            place=archive.storage.place,
        )
        answer_s = ANSWER_S + entry.size_bytes / READ_BYTES_S
        return self._api.record_bundle(entry.topic, entry.partition, bundle, answer_s=answer_s)

    def _warn_unverified(self, reason: str) -> None:
        self._warn(
            f"{reason}; with archive.required the broker keeps these records until it can verify "
            "them: run the command again then, or set archive.verified.by=job on the topic to "
            "trust the job"
        )
