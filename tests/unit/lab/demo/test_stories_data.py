"""The demo's generated data: one seed always gives the same data and the same expected result."""

import json
from xml.etree import ElementTree as ET

import pytest

from cordwood.lab.demo.cdc import make_changelog, state_hash
from cordwood.lab.demo.picture import Moment, _round_up, draw
from cordwood.lab.demo.timecode import find_faults, frame_number, record_tape, timecode


def replayed(changes):
    """Apply all changes in order and return the final table. Malformed keys are repaired."""
    table = {}
    for change in changes:
        user = int(change.key.replace(b"/", b".").split(b".")[1])
        if change.value is None:
            table.pop(user, None)
        else:
            table[user] = json.loads(change.value)
    return table


def test_changelog_leads_to_its_truth():
    """Applying every change gives the final table that the generator reports."""
    log = make_changelog(11, users=50, changes=2_000, poison=7)
    assert replayed(log.changes) == log.truth
    assert sum(change.is_poison for change in log.changes) == 7


def test_poison_left_out_makes_the_table_wrong():
    """Without the malformed changes the table is wrong, because each is its user's last change."""
    log = make_changelog(11, users=50, changes=2_000, poison=7)
    healthy = replayed(change for change in log.changes if not change.is_poison)
    assert state_hash(healthy.values()) != state_hash(log.truth.values())


def test_same_seed_tells_the_same_story():
    """The same seed gives the same changelog."""
    assert make_changelog(3, 20, 500, 2) == make_changelog(3, 20, 500, 2)


def test_schema_changes_on_the_way():
    """Late rows have the field ``plan``, early rows do not."""
    log = make_changelog(11, users=50, changes=2_000, poison=0)
    early = [json.loads(change.value) for change in log.changes[:1000] if change.value]
    late = [json.loads(change.value) for change in log.changes[1300:] if change.value]
    assert not any("plan" in row for row in early)
    assert all("plan" in row for row in late)


def test_timecode_converts_to_frames_and_back():
    """A timecode counts 25 frames per second from 10:00:00:00, and converts back to its frame."""
    assert timecode(0) == "10:00:00:00"
    assert timecode(749) == "10:00:29:24"
    assert all(frame_number(timecode(frame)) == frame for frame in range(0, 200_000, 777))


def test_faults_of_a_tape_are_found_from_its_codes():
    """``find_faults`` finds exactly the missing and doubled frames that were generated."""
    tape = record_tape(7, "deck-1", frames=1_000, missing=9, doubled=4)
    assert find_faults(tape.codes, 1_000) == (tape.missing, tape.doubled)


def test_picture_is_well_formed_and_names_every_step():
    """The picture is well-formed XML with a title on every bar."""
    produced, compacted = Moment("produce <1>", 1, 10, 0, 0, 0, 0), Moment("x", 2, 1, 3, 2, 6, 0)
    words = "".join(ET.fromstring(draw("a & b", [produced, compacted])).itertext())
    for shown in (
        "produce <1>",
        "10 bytes in active",
        "3 bytes in cut",
        "6 bytes compacted",
        "2 s",
    ):
        assert shown in words
    assert produced.written == compacted.written == 10


@pytest.mark.parametrize(
    ("count", "top"), [(1, 1), (9, 10), (10, 10), (11, 20), (5_600_000, 6_000_000), (61, 80)]
)
def test_the_scale_of_the_picture_ends_at_a_round_number(count, top):
    """The scale ends at a round number that is at least the largest value."""
    assert _round_up(count) == top
