"""How errors in Spark tasks are returned to the driver."""

from __future__ import annotations

import errno

import pytest

from cordwood.client.storage import naming
from cordwood.errors import StaleManifest, UnavailableError
from cordwood.pipeline.runtime.tasks import outcome as outcome_of


def test_an_error_of_ours_comes_back_as_itself():
    """A cordwood error is returned with its own class."""

    def work(_):
        raise StaleManifest("moved on")

    assert isinstance(outcome_of(work, 1), StaleManifest)


def test_a_full_disk_is_one_sentence_with_the_place():
    """A full disk becomes ``UnavailableError`` with the file's path, without a traceback."""

    def work(_):
        raise OSError(errno.ENOSPC, "No space left on device", "/tape/bundle.part")

    outcome = outcome_of(work, 1)
    assert isinstance(outcome, UnavailableError)
    assert "/tape/bundle.part: No space left on device" in str(outcome)


def test_a_failed_write_without_a_file_name_is_reported_with_its_directory(tmp_path):
    """``naming`` adds the path to an ``OSError`` that has none, and keeps a path that is set."""
    full = errno.ENOSPC, "No space left on device"
    for names in ((), ("/tape/inner",)):
        with pytest.raises(OSError, match="No space") as caught, naming(tmp_path):
            raise OSError(*full, *names)
        assert caught.value.filename == (names[0] if names else str(tmp_path))


def test_a_mistake_of_our_own_stays_one():
    """A programming error is not converted."""
    with pytest.raises(ZeroDivisionError):
        outcome_of(lambda _: 1 // 0, 1)
