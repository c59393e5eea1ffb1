"""Garbage collection closes the file descriptors of a cache that was never closed."""

import gc
import os
from pathlib import Path

from cordwood.log.files.file_cache import FileCache


def open_paths():
    """The paths of all files that this process has open."""
    links = list(Path("/proc/self/fd").iterdir())
    return {str(link.readlink()) for link in links if link.is_symlink()}


def test_descriptors_nobody_closes_are_given_back_when_they_go(tmp_path):
    """A file cache that is dropped without ``close`` leaves no descriptor open."""
    path = tmp_path / "a"
    path.touch()
    descriptors = FileCache()
    with descriptors.lease("a", lambda: os.open(path, os.O_RDONLY)):
        pass
    assert str(path) in open_paths()
    del descriptors
    gc.collect()
    assert str(path) not in open_paths()
