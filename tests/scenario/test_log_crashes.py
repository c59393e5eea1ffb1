"""Stop the log after every file effect, lose power in every way, and open it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cordwood.batch.records import encode_marker
from cordwood.config import TopicConfig
from cordwood.decide.roll import RollReason
from cordwood.log.write.partition import Partition
from support.clock import ManualClock
from support.crash import Crash, CrashFiles, Power
from support.logs import NOW_MS, append, append_data, open_partition, values_of

CONFIG = TopicConfig(index_interval_bytes=64, file_delete_delay_ms=0)
POWER = [None, *Power]


class SentRecords:
    """What a client sent, and what was acknowledged to it."""

    def __init__(self) -> None:
        self.sent: dict[int, bytes] = {}  # the offset it would get → value
        self.acked: dict[int, bytes] = {}

    def append(self, partition: Partition, *values: bytes) -> None:
        base = partition.log_end_offset
        batch = dict(enumerate(values, base))
        self.sent |= batch
        append(partition, *values)
        self.acked |= batch

    def forget_from(self, offset: int) -> None:
        """A truncation was requested: records at or past ``offset`` may go at any time."""
        self.acked = {o: value for o, value in self.acked.items() if o < offset}

    def forget_below(self, offset: int) -> None:
        self.acked = {o: value for o, value in self.acked.items() if o >= offset}


Story = Callable[[Path, CrashFiles, SentRecords], None]


def create(root: Path, files: CrashFiles, sent: SentRecords) -> None:
    open_partition(root, CONFIG, files=files)


def appends(root: Path, files: CrashFiles, sent: SentRecords) -> None:
    partition = open_partition(root, CONFIG, files=files)
    for i in range(4):
        sent.append(partition, b"a%d" % i, b"b%d" % i)


def rolls(root: Path, files: CrashFiles, sent: SentRecords) -> None:
    partition = open_partition(root, CONFIG, files=files)
    for i in range(3):
        sent.append(partition, b"a%d" % i, b"b%d" % i)
        sent.append(partition, b"c%d" % i)
        partition.roll(RollReason.DEMAND)
    sent.append(partition, b"last")


def a_roll_with_unpublished_appends(root: Path, files: CrashFiles, sent: SentRecords) -> None:
    partition = open_partition(root, CONFIG, files=files)
    sent.append(partition, b"a")
    sent.sent |= {1: b"b", 2: b"c"}
    append(partition, b"b", publish=False)
    partition.roll(RollReason.DEMAND)
    append(partition, b"c", publish=False)
    partition.sync()
    partition.publish()
    sent.acked |= {1: b"b", 2: b"c"}


def drops(root: Path, files: CrashFiles, sent: SentRecords) -> None:
    clock = ManualClock(NOW_MS)
    partition = open_partition(root, CONFIG, files=files, clock=clock)
    for i in range(4):
        sent.append(partition, b"a%d" % i, b"b%d" % i)
        partition.roll(RollReason.DEMAND)
    sent.forget_below(4)
    partition.drop([0, 2])
    sent.append(partition, b"after the drop")
    partition.purge_deleted(clock.now_ms())
    sent.append(partition, b"after the purge")


def truncations(root: Path, files: CrashFiles, sent: SentRecords) -> None:
    partition = open_partition(root, CONFIG, files=files)
    for i in range(3):
        sent.append(partition, b"a%d" % i, b"b%d" % i)
        sent.append(partition, b"c%d" % i)
        partition.roll(RollReason.DEMAND)
    sent.forget_from(3)  # offset 4 lies in the batch of 3 and 4
    partition.truncate_to(4)
    assert partition.log_end_offset == 3
    sent.sent = {o: value for o, value in sent.sent.items() if o < 3}
    sent.append(partition, b"instead")
    partition.roll(RollReason.DEMAND)
    sent.append(partition, b"and on")


def clean_closes(root: Path, files: CrashFiles, sent: SentRecords) -> None:
    for i in range(3):
        partition = open_partition(root, CONFIG, files=files, leader_epoch=i)
        sent.append(partition, b"a%d" % i, b"b%d" % i)
        if i == 1:
            partition.roll(RollReason.DEMAND)
        partition.close()


def transactions(root: Path, files: CrashFiles, sent: SentRecords) -> None:
    partition = open_partition(root, CONFIG, files=files)
    for i in range(3):
        sent.sent[partition.log_end_offset] = b"t%d" % i
        base = partition.log_end_offset
        append(
            partition,
            b"t%d" % i,
            producer_id=7,
            producer_epoch=0,
            base_sequence=i,
            is_transactional=True,
        )
        sent.acked[base] = b"t%d" % i
        marker = encode_marker(
            i == 1, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW_MS
        )
        append_data(partition, bytearray(marker))
        partition.roll(RollReason.DEMAND)


def a_swap_among_unsynced_appends(root: Path, files: CrashFiles, sent: SentRecords) -> None:
    """A swap must not record the active segment as synced before it is."""
    partition = open_partition(root, CONFIG, files=files)
    for i in range(2):
        sent.append(partition, b"a%d" % i, b"b%d" % i)
        partition.roll(RollReason.DEMAND)
    sent.sent[4] = b"c"
    append(partition, b"c", publish=False)
    staged = partition.directory / f"{0:020d}.log.swap"
    files.write_whole(staged, (partition.directory / f"{0:020d}.log").read_bytes())
    partition.replace([0], [0])
    partition.sync()
    partition.publish()
    sent.acked[4] = b"c"


STORIES: list[Story] = [
    create,
    appends,
    rolls,
    a_roll_with_unpublished_appends,
    drops,
    truncations,
    clean_closes,
    transactions,
    a_swap_among_unsynced_appends,
]


def tell(story: Story, root: Path, after: int | None, tear: bool) -> tuple[CrashFiles, SentRecords]:
    """Run the story until its crash."""
    root.mkdir()
    files = CrashFiles(root, after, tear=tear)
    sent = SentRecords()
    try:
        story(root, files, sent)
    except Crash:
        assert files.point is not None
    return files, sent


def check(root: Path, sent: SentRecords, where: str) -> None:
    """Every acknowledged record is there, nothing else appears, and appends continue."""
    partition = open_partition(root, CONFIG)
    found = values_of(partition)
    missing = {o: v for o, v in sent.acked.items() if found.get(o) != v}
    assert not missing, f"{where}: acknowledged and gone: {missing}"
    invented = {o: v for o, v in found.items() if sent.sent.get(o) != v}
    assert not invented, f"{where}: never sent: {invented}"
    assert partition.high_watermark == partition.log_end_offset
    base = partition.log_end_offset
    assert base > max(found, default=-1), where
    append(partition, b"again")
    assert values_of(partition) == found | {base: b"again"}, where
    partition.roll(RollReason.DEMAND)
    append(partition, b"and again")
    before = values_of(partition)
    partition.close()
    reopened = open_partition(root, CONFIG)
    assert values_of(reopened) == before, where
    assert not reopened.recovery.rebuilt, where
    reopened.close()


@pytest.fixture
def disk() -> Iterator[Path]:
    """Return a temporary directory, in memory if possible: no test here needs a real disk."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


@pytest.mark.parametrize("power", POWER, ids=lambda p: p.name.lower() if p else "killed")
@pytest.mark.parametrize("story", STORIES, ids=lambda s: s.__name__)
def test_a_crash_after_any_effect_loses_nothing_and_invents_nothing(story, power, disk):
    """After a stop at any effect, the log serves what was acknowledged and accepts appends."""
    whole, _ = tell(story, disk / "whole", None, tear=False)
    assert whole.point is None
    effects = len(whole.effects)
    assert effects > 3, "the story does something"
    for after in range(effects + 1):
        root = disk / str(after)
        files, sent = tell(story, root, after, tear=power is None and after % 2 == 0)
        if power is not None:
            files.power_off(power)
        check(root, sent, f"after {after} effects, at {files.point}")


def test_the_harness_loses_what_was_not_synced(tmp_path):
    """Without fsync, a power loss must lose records; otherwise these tests could not fail."""

    class Forgetful(CrashFiles):
        def sync_data(self, file):
            """Does nothing."""

    files = Forgetful(tmp_path)
    sent = SentRecords()
    appends(tmp_path, files, sent)
    files.power_off(Power.NAMES)
    with pytest.raises(AssertionError, match="acknowledged and gone"):
        check(tmp_path, sent, "here")
