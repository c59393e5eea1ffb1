"""A file with a bound, for what other programs say."""

from __future__ import annotations

from cordwood.server.rotating_file import RotatingFile


def test_a_journal_keeps_the_newest_words_and_some_before_them(tmp_path):
    """Never more than twice the bound on disk, across lives too."""
    path = tmp_path / "said.log"
    for life in range(3):
        journal = RotatingFile(path, bytes_max=100)
        for number in range(20):
            journal.write(b"life %d word %02d\n" % (life, number))
        journal.close()
    assert path.read_bytes().endswith(b"life 2 word 19\n")
    sizes = [file.stat().st_size for file in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) <= 100


def test_a_disk_that_refuses_is_said_once_and_harms_nobody(tmp_path, caplog):
    """The words are lost; the broker that passes them on is not."""
    journal = RotatingFile(tmp_path / "missing" / "said.log")
    journal.write(b"one")
    journal.write(b"two")
    (said,) = caplog.messages
    assert "said.log" in said
    journal.close()
