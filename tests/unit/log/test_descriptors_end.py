"""Descriptors of a reader that nobody closed."""

import gc
import os
from pathlib import Path

from cordwood.log.files.file_cache import FileCache


def open_paths():
    """What this process has open, by path."""
    links = list(Path("/proc/self/fd").iterdir())
    return {str(link.readlink()) for link in links if link.is_symlink()}


def test_descriptors_nobody_closes_are_given_back_when_they_go(tmp_path):
    """A partition that is dropped without ``close`` leaves no open file behind."""
    path = tmp_path / "a"
    path.touch()
    descriptors = FileCache()
    with descriptors.lease("a", lambda: os.open(path, os.O_RDONLY)):
        pass
    assert str(path) in open_paths()
    del descriptors
    gc.collect()
    assert str(path) not in open_paths()
