"""Validation of swap manifests, and detection of manifests that no longer match the log."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cordwood.errors import InvalidManifest, StaleManifest
from cordwood.log.format.manifest import (
    Manifest,
    Replaced,
    StagedFile,
    StagedSegment,
    encode_manifest,
    parse_manifest,
    plan_swap,
)
from support.stacks import a_segment, an_active

LIVE = [a_segment(0, 10), a_segment(10, 20), a_segment(20, 30)]
ALL = [*LIVE, an_active(LIVE)]


def a_file(base: int, kind: str = ".log") -> StagedFile:
    return StagedFile(name=f"{base:020d}{kind}", size_bytes=7, sha256="ab")


def a_manifest(*ranges: tuple[int, int], new: tuple[tuple[int, int], ...] = ()) -> Manifest:
    ranges = ranges or ((0, 10), (10, 20))
    new = new or ((ranges[0][0], ranges[-1][1]),)
    return Manifest(
        job="job-1",
        topic="t",
        topic_id="id",
        partition=0,
        replaces=tuple(Replaced(base_offset=b, end_offset=e, size_bytes=100) for b, e in ranges),
        segments=tuple(
            StagedSegment(base_offset=b, end_offset=e, records=1, files=(a_file(b),))
            for b, e in new
        ),
        verified={"keys": 3},
    )


def with_text(**changes) -> bytes:
    return json.dumps(json.loads(encode_manifest(a_manifest())) | changes).encode()


def test_a_manifest_comes_back_as_it_was_written():
    """Encoding and parsing a manifest gives an equal manifest."""
    manifest = a_manifest((0, 10), (10, 30), new=((0, 12), (12, 30)))
    assert parse_manifest(encode_manifest(manifest)) == manifest


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        b'{"format": 1}',
        with_text(format=2),
        with_text(job="../up"),
        with_text(job=""),
        with_text(topic="a/b"),
        with_text(partition="0"),
        with_text(replaces=[]),
        with_text(segments=[]),
        with_text(extra=1),
        with_text(replaces=[{"base_offset": "0", "end_offset": 10, "size_bytes": 1}]),
    ],
)
def test_a_text_that_is_no_manifest_is_refused(text):
    """Any malformed text raises ``InvalidManifest``."""
    with pytest.raises(InvalidManifest, match=r"run the job again|another format"):
        parse_manifest(text)


@pytest.mark.parametrize(
    ("new", "problem"),
    [
        (((1, 20),), "start at a different offset"),
        (((0, 19),), "end at a different offset"),
        (((0, 12), (10, 20)), "does not follow"),
        (((0, 8), (10, 20)), "does not follow"),
        (((0, 0), (0, 20)), "out of order"),
    ],
)
def test_new_segments_cover_exactly_what_they_replace(new, problem):
    """The new segments cover exactly the replaced offset range.

    Otherwise a start could not determine from the file names which segments a swap replaced.
    """
    with pytest.raises(InvalidManifest, match=problem):
        parse_manifest(encode_manifest(a_manifest(new=new)))


@pytest.mark.parametrize(
    "files",
    [
        (),
        (a_file(0, ".index"),),
        (a_file(0), a_file(0)),
        (a_file(0), a_file(1)),
        (StagedFile(name="../../etc/passwd", size_bytes=1, sha256=""), a_file(0)),
        (a_file(0), a_file(0, ".snapshot")),
        (a_file(0), a_file(0, ".index.swap")),
        (replace(a_file(0), size_bytes=-1),),
    ],
)
def test_a_segment_names_its_own_files_and_no_others(files):
    """A segment has one ``.log`` file and at most one of each index, all in the job's directory."""
    manifest = a_manifest()
    broken = replace(manifest, segments=(replace(manifest.segments[0], files=files),))
    with pytest.raises(InvalidManifest):
        parse_manifest(encode_manifest(broken))


@pytest.mark.parametrize(
    "ranges", [((0, 10),), ((10, 20),), ((0, 10), (10, 20), (20, 30)), ((10, 20), (20, 30))]
)
def test_a_run_of_sealed_segments_may_be_replaced(ranges):
    """Any consecutive run of sealed segments can be replaced."""
    assert plan_swap(a_manifest(*ranges), ALL, "id", {}) == tuple(b for b, _ in ranges)


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        (a_manifest((5, 10)), "segment 5 is no longer part of the log"),
        (a_manifest((0, 20)), "is now"),
        (a_manifest((10, 20), (20, 25)), "is now"),
        (a_manifest((20, 30), (30, 40)), "not sealed"),
        (a_manifest((30, 40)), "not sealed"),
        (a_manifest((20, 30), (30, 40), (40, 50)), "not sealed"),
        (replace(a_manifest(), topic_id="other"), "created again"),
    ],
)
def test_a_manifest_that_does_not_match_the_log_is_stale(manifest, problem):
    """Nothing is swapped if a segment is dropped, changed or active, or the topic was recreated."""
    with pytest.raises(StaleManifest, match=problem):
        plan_swap(manifest, ALL, "id", {})


def test_a_run_past_the_end_of_the_log_is_stale():
    """Segments that do not exist cannot be replaced."""
    sealed = [replace(segment, state=LIVE[0].state) for segment in ALL]
    with pytest.raises(StaleManifest, match="no longer part of the log"):
        plan_swap(a_manifest((30, 40), (40, 50)), sealed, "id", {})


def test_other_bytes_of_the_same_size_are_stale():
    """If both the manifest and the log have a SHA-256, the two must be equal."""
    manifest = a_manifest((0, 10))
    known = replace(manifest, replaces=(replace(manifest.replaces[0], sha256="aa"),))
    assert plan_swap(known, ALL, "id", {0: "aa"}) == (0,)
    assert plan_swap(known, ALL, "id", {}) == (0,)
    with pytest.raises(StaleManifest, match="sha256"):
        plan_swap(known, ALL, "id", {0: "bb"})
