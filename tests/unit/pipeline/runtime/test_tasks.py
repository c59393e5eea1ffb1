"""Spark tasks of plain values: what becomes of an error in one of them."""

from __future__ import annotations

import errno

import pytest

from cordwood.client.storage import naming
from cordwood.errors import StaleManifest, UnavailableError
from cordwood.pipeline.runtime.tasks import outcome as outcome_of


def test_an_error_of_ours_comes_back_as_itself():
    """With its class, so that who asked can tell what to do."""

    def work(_):
        raise StaleManifest("moved on")

    assert isinstance(outcome_of(work, 1), StaleManifest)


def test_a_full_disk_is_one_sentence_with_the_place():
    """Whichever task met it; no traceback through Spark."""

    def work(_):
        raise OSError(errno.ENOSPC, "No space left on device", "/tape/bundle.part")

    outcome = outcome_of(work, 1)
    assert isinstance(outcome, UnavailableError)
    assert "/tape/bundle.part: No space left on device" in str(outcome)


def test_a_write_that_names_no_file_is_told_with_its_place(tmp_path):
    """The system names a file it opens, and none it writes to; a place once named stays."""
    full = errno.ENOSPC, "No space left on device"
    for names in ((), ("/tape/inner",)):
        with pytest.raises(OSError, match="No space") as caught, naming(tmp_path):
            raise OSError(*full, *names)
        assert caught.value.filename == (names[0] if names else str(tmp_path))


def test_a_mistake_of_our_own_stays_one():
    """Only what the world does to us is told in a sentence."""
    with pytest.raises(ZeroDivisionError):
        outcome_of(lambda _: 1 // 0, 1)
