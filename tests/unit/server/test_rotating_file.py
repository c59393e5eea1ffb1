"""A log file of bounded size for the output of other processes."""

from __future__ import annotations

from cordwood.server.rotating_file import RotatingFile


def test_a_output_keeps_the_newest_words_and_some_before_them(tmp_path):
    """The newest output is kept, with at most two files of the maximum size, across restarts."""
    path = tmp_path / "pipeline.log"
    for life in range(3):
        output = RotatingFile(path, bytes_max=100)
        for number in range(20):
            output.write(b"life %d word %02d\n" % (life, number))
        output.close()
    assert path.read_bytes().endswith(b"life 2 word 19\n")
    sizes = [file.stat().st_size for file in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) <= 100


def test_a_disk_that_refuses_is_reported_once_and_harms_nobody(tmp_path, caplog):
    """If the file cannot be written, one warning is logged and the output is dropped."""
    output = RotatingFile(tmp_path / "missing" / "pipeline.log")
    output.write(b"one")
    output.write(b"two")
    (reply,) = caplog.messages
    assert "pipeline.log" in reply
    output.close()
