"""Compare a partition log with a plain list under random operations, reopens and crashes."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from cordwood.batch.records import decode_batch
from cordwood.config import TopicConfig
from cordwood.decide.roll import RollReason
from cordwood.errors import CorruptionError, OffsetOutOfRange
from cordwood.log.format.scan import End
from cordwood.model import Codec, Record
from support.clock import ManualClock
from support.crash import CrashFiles, Power, QuickFiles
from support.logs import NOW_MS, a_batch, append_data, headers_of, open_partition, read_all

VALUES = st.lists(st.binary(max_size=60), min_size=1, max_size=4)
TIMES = st.integers(0, 50)


def scratch() -> Path:
    """Return a new temporary directory, in memory if ``/dev/shm`` exists."""
    memory = Path("/dev/shm")
    return Path(mkdtemp(dir=memory if memory.is_dir() else None))


class LogModel(RuleBasedStateMachine):
    """Model a log as a list of records by offset, a log start offset and a high watermark."""

    @initialize(
        segment_entries=st.sampled_from([3, 10, 1000]),
        interval_bytes=st.sampled_from([0, 150, 4096]),
    )
    def begin(self, segment_entries: int, interval_bytes: int) -> None:
        self.root = scratch()
        self.config = TopicConfig(
            segment_entries=segment_entries,
            index_interval_bytes=interval_bytes,
            file_delete_delay_ms=0,
        )
        self.clock = ManualClock(NOW_MS)
        self.records: list[Record] = []  # appended and not truncated, from offset 0
        self.start = 0
        self.published = 0
        self.term = 0
        self.open()

    def open(self) -> None:
        self.term += 1
        self.files = CrashFiles(self.root)
        self.log = open_partition(
            self.root,
            self.config,
            files=self.files,
            clock=self.clock,
            leader_epoch=self.term,
            log_start_offset=self.start,
        )

    def teardown(self) -> None:
        if hasattr(self, "root"):
            self.log.close()
            shutil.rmtree(self.root)

    # --- the writer's operations ------------------------------------------------------------

    @rule(
        batches=st.lists(st.tuples(VALUES, TIMES), min_size=1, max_size=3),
        codec=st.sampled_from([Codec.NONE, Codec.GZIP]),
        publish=st.booleans(),
    )
    def append(self, batches: list, codec: Codec, publish: bool) -> None:
        base = self.log.log_end_offset
        data = bytearray()
        for values, time_ms in batches:
            times = [time_ms + (7 * i) % 5 for i in range(len(values))]
            data += a_batch(*values, times_ms=times, codec=codec)
            for value, at_ms in zip(values, times, strict=True):
                self.records.append(Record(len(self.records), at_ms, value, value))
        appended = append_data(self.log, data, publish=publish)
        assert (appended.base_offset, appended.last_offset) == (base, len(self.records) - 1)
        if publish:
            self.published = len(self.records)

    @rule()
    def roll(self) -> None:
        self.log.roll(RollReason.DEMAND)

    @rule()
    def publish(self) -> None:
        self.log.sync()
        self.log.publish()
        self.published = len(self.records)

    @rule(share=st.floats(0, 1))
    def advance_start(self, share: float) -> None:
        self.start += int((self.published - self.start) * share)
        self.log.advance_start(self.start)

    @rule(count=st.integers(1, 3))
    def drop(self, count: int) -> None:
        sealed = [s for s in self.log.segments()[:-1] if s.end_offset <= self.published]
        dropped = self.log.drop([s.base_offset for s in sealed[:count]])
        if dropped:
            self.start = max(self.start, dropped[-1].end_offset)
        self.log.purge_deleted(self.clock.now_ms())

    @precondition(lambda self: self.start < len(self.records))
    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        offset = self.start + int((len(self.records) - self.start) * share)
        self.log.truncate_to(offset)
        assert self.log.log_end_offset <= offset or self.log.log_end_offset == len(self.records)
        # Truncation goes back to the start of the batch that holds the offset, never further.
        assert self.log.log_end_offset > offset - 4 or offset > len(self.records)
        if self.log.log_end_offset < len(self.records):
            del self.records[self.log.log_end_offset :]
            self.published = len(self.records)
            self.start = min(self.start, self.published)

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        if clean:
            self.log.close()
        else:
            self.log.abandon("the test killed it")
        self.open()
        self.after_recovery(lost=0)

    @rule(power=st.sampled_from(Power))
    def lose_power(self, power: Power) -> None:
        self.log.abandon("the test pulled the plug")
        self.files.power_off(power)
        self.open()
        self.after_recovery(lost=len(self.records) - self.published)

    def after_recovery(self, lost: int) -> None:
        """Recovery keeps every published record, and may keep a prefix of the rest.

        Everything that it keeps is published.
        """
        assert len(self.records) - lost <= self.log.log_end_offset <= len(self.records)
        del self.records[self.log.log_end_offset :]
        self.published = len(self.records)

    # --- checks -----------------------------------------------------------------------------

    @invariant()
    def marks_agree(self) -> None:
        if hasattr(self, "log"):
            assert self.log.high_watermark == self.published
            assert self.log.log_end_offset == len(self.records)
            assert self.log.log_start_offset == self.start
            infos = self.log.segments()
            assert infos[-1].end_offset == len(self.records)
            assert all(a.end_offset == b.base_offset for a, b in zip(infos, infos[1:]))  # noqa: B905, RUF007
            assert all(s.records == s.end_offset - s.base_offset for s in infos)

    @rule(max_bytes=st.sampled_from([1, 200, 10_000]))
    def read_everything(self, max_bytes: int) -> None:
        assert read_all(self.log, max_bytes) == self.records[self.start : self.published]

    @rule(offset=st.integers(-2, 60), max_bytes=st.sampled_from([1, 500]))
    def read_one(self, offset: int, max_bytes: int) -> None:
        if not self.start <= offset <= len(self.records):
            with pytest.raises(OffsetOutOfRange):
                self.log.read(offset, max_bytes)
            return
        found = self.log.read(offset, max_bytes)
        if offset >= self.published:
            assert (found.data, found.next_offset) == (b"", offset)
        else:
            assert found.first_offset <= offset < found.next_offset <= self.published
            assert offset - found.first_offset < 4

    @rule(time_ms=st.integers(-1, 60))
    def find_time(self, time_ms: int) -> None:
        readable = self.records[self.start : self.published]
        expected = next((r for r in readable if r.timestamp_ms >= time_ms), None)
        found = self.log.find_time(time_ms)
        assert (found and found.offset) == (expected and expected.offset)

    @rule()
    def find_max_time(self) -> None:
        readable = self.records[self.start : self.published]
        expected = max(readable, key=lambda r: r.timestamp_ms, default=None)
        found = self.log.find_max_time()
        assert (found and found.offset) == (expected and expected.offset)


LogModel.TestCase.settings = settings(stateful_step_count=30)
TestTheLogAgreesWithAList = LogModel.TestCase


def written(values: list[list[bytes]]) -> tuple[bytes, list[int]]:
    """Return the bytes of a log with these batches, and the position where each batch begins."""
    root = scratch()
    try:
        log = open_partition(root)
        for batch in values:
            append_data(log, a_batch(*batch))
        data = (log.directory / f"{0:020d}.log").read_bytes()
        log.abandon("done")
    finally:
        shutil.rmtree(root)
    positions = [0]
    for header in headers_of(data):
        positions.append(positions[-1] + header.size_bytes)
    return data, positions


@given(values=st.lists(VALUES, min_size=1, max_size=5), share=st.floats(0, 1), zeros=st.booleans())
def test_a_log_cut_anywhere_keeps_every_batch_before_the_cut(values, share, zeros):
    """A log cut or zeroed from any byte keeps exactly the whole batches before that byte."""
    data, positions = written(values)
    cut = int(len(data) * share)
    root = scratch()
    try:
        directory = root / "t-0"
        directory.mkdir()
        left = data[:cut] + (bytes(len(data) - cut) if zeros else b"")
        (directory / f"{0:020d}.log").write_bytes(left)
        log = open_partition(root, files=QuickFiles())
        whole = max(p for p in positions if left[:p] == data[:p])
        assert log.size_bytes == whole
        assert log.recovery.end is (End.CLEAN if whole == len(left) else End.TORN)
        kept = [record for position in positions if position < whole
                for record in decode_batch(data, position)]  # fmt: skip
        assert read_all(log) == kept
        assert append_data(log, a_batch(b"again")).base_offset == len(kept)
        log.close()
        assert len(read_all(open_partition(root))) == len(kept) + 1
    finally:
        shutil.rmtree(root)


@given(
    values=st.lists(VALUES, min_size=2, max_size=5),
    place=st.floats(0, 0.999),
    bit=st.integers(0, 7),
)
def test_any_flipped_bit_of_a_sealed_segment_is_detected(values, place, bit):
    """Reading a sealed segment with a flipped bit raises, or returns the records as written.

    Only the base offset may be misread, because it lies outside the checksum, as in Kafka.
    """
    data, positions = written(values)
    flipped = int(len(data) * place)
    wrong = bytearray(data)
    wrong[flipped] ^= 1 << bit
    in_batch = flipped - max(p for p in positions if p <= flipped)
    expected = [Record(i, NOW_MS, v, v) for i, v in enumerate(v for batch in values for v in batch)]
    root = scratch()
    try:
        log = open_partition(root)
        for batch in values:
            append_data(log, a_batch(*batch))
        log.roll(RollReason.DEMAND)
        (log.directory / f"{0:020d}.log").write_bytes(wrong)
        found = None
        with suppress(CorruptionError):
            found = read_all(log, 1)
        if 12 <= in_batch < 16:  # the leader epoch
            assert found == expected
        elif in_batch < 8:  # the offset
            assert found is None or [r.value for r in found] == [r.value for r in expected]
        else:
            assert found is None
        log.abandon("done")
    finally:
        shutil.rmtree(root)
