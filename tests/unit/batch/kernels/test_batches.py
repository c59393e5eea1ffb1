"""The kernels themselves: checksums, compilation, the cache and loading."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cordwood.batch.header import crc32c
from cordwood.batch.header_table import readonly
from cordwood.batch.kernels import batches as kernels
from cordwood.batch.kernels import lines as line_kernels
from cordwood.batch.kernels import llvm_intrinsics, loader
from cordwood.batch.kernels import subscriber_lines as text_kernels


@pytest.mark.parametrize("size", [*range(20), 1000, 4097])
def test_both_checksum_kernels_agree_with_the_library(size):
    """The hardware and the table checksum equal the library's, for any length and start."""
    data = np.random.default_rng(size).bytes(size + 3)
    for start in range(3):
        expected = crc32c(data[start : start + size])
        assert kernels.crc32c(readonly(data), start, start + size) == expected
        assert kernels.crc32c_portable(readonly(data), start, start + size) == expected


@pytest.mark.parametrize("module", [kernels, line_kernels, text_kernels])
def test_kernels_state_the_pieces_they_are_made_of(module):
    """Each kernel module states the digest of llvm_intrinsics.py.

    Numba's cache does not notice a change in that file, but it notices the changed digest.
    """
    digest = hashlib.sha256(Path(llvm_intrinsics.__file__).read_bytes()).hexdigest()[:16]
    assert digest == module.INTRINSICS_DIGEST, (
        "set MACHINE_DIGEST to this, so that caches are renewed"
    )


def test_every_kernel_is_compiled_for_its_one_signature():
    """Each kernel is compiled for exactly one signature, so no request waits for compilation."""
    names = [name for name in kernels.__all__ if name.islower()]
    assert len(names) == 12
    for name in names:
        assert len(getattr(kernels, name).signatures) == 1, name


def test_kernels_are_loaded_on_first_use():
    """The line encoder works without numba until the kernels are loaded."""
    program = (
        "import sys, cordwood.batch.lines as lines\n"
        "assert 'numba' not in sys.modules and not lines.kernels_ready()\n"
        "before = lines.encode_lines(b'k|1|2|x\\n', 5)\n"
        "assert 'numba' not in sys.modules\n"
        "lines.load_kernels()\n"
        "assert lines.kernels_ready() and lines.encode_lines(b'k|1|2|x\\n', 5) == before\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")


def test_without_any_place_for_a_cache_kernels_still_compile(tmp_path):
    """The kernels compile without a writable cache directory."""
    locked = tmp_path / "file"
    locked.write_text("not a directory")
    program = (
        "from numba.core import caching\n"
        "caching.InTreeCacheLocator.from_function = classmethod(lambda *_: None)\n"
        "from cordwood.batch.kernels import llvm_intrinsics\n"
        "@llvm_intrinsics.kernel(llvm_intrinsics.LONG)\n"
        "def twice(n):\n"
        "    return 2 * n\n"
        "assert twice(21) == 42\n"
    )
    script = tmp_path / "script.py"
    script.write_text(program)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA")}
    environment |= {"XDG_CACHE_HOME": str(locked), "HOME": str(locked)}
    run = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "left"), [(".nbc", b""), (".nbi", b"\x80\x04 no pickle")])
def test_a_cache_that_does_not_load_is_made_again(tmp_path, suffix, left):
    """A damaged cache file, as a crash may leave it, is replaced by a new compilation."""
    script = tmp_path / "script.py"
    script.write_text(
        "from cordwood.batch.kernels import llvm_intrinsics\n"
        "@llvm_intrinsics.kernel(llvm_intrinsics.LONG)\n"
        "def twice(n):\n"
        "    return 2 * n\n"
        "assert twice(21) == 42\n"
        "print(sum(twice.stats.cache_hits.values()))\n"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def hits() -> int:
        run = subprocess.run(
            [sys.executable, script], env=environment, capture_output=True, text=True, check=True
        )
        return int(run.stdout)

    assert [hits(), hits()] == [0, 1], "made by the first start, found by the second"
    (damaged,) = (tmp_path / "cache").rglob(f"*{suffix}")
    damaged.write_bytes(left)
    assert [hits(), hits()] == [0, 1], "made again, then found again"


def test_kernels_are_loaded_once():
    """Every call returns the same module."""
    assert loader.kernels() is kernels
    assert loader.kernels_ready()
