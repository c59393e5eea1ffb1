"""Commands that read files handle foreign, unreadable and misplaced files.

They print a one-line error and set an exit code, without a traceback. One bad file does not hide
the others.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from cordwood.cli import main
from cordwood.testing import Broker
from support.lines import ask

SEGMENT = "00000000000000000000.log"


@pytest.fixture
def data(tmp_path):
    """A data directory with two sealed segments of one topic, and no broker."""
    path = tmp_path / "data"
    with Broker(path, durability="os") as broker:
        for _ in range(2):
            assert ask(broker.control, "PUT t one") == b"OK"
            assert ask(broker.control, "CUT t") == b"OK 1"
    return path


@pytest.fixture
def cordwood(capsys, monkeypatch, tmp_path):
    """Runs a command line through ``main``; returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cordwood", *shlex.split(line)])
        with pytest.raises(SystemExit) as ended:
            main()
        output = capsys.readouterr()
        return ended.value.code or 0, output.out, output.err

    return run


def foreign(data: Path, name: str) -> Path:
    path = data / "t-0" / name
    path.write_bytes(b"not ours\n")
    return path


@pytest.mark.parametrize("command", ["ls", "verify -q"])
@pytest.mark.parametrize("name", ["app.log", "12.log", "9" * 30 + ".log", "-1.log", "٣.log"])
def test_a_foreign_log_file_is_named_and_passed_over(cordwood, data, command, name):
    """A foreign ``.log`` file is reported and skipped; the segments are processed normally."""
    path = foreign(data, name)
    code, out, err = cordwood(f"segment {command} --data data")
    assert (code, err) == (0, f"data/t-0/{path.name} is not a segment file; skipped\n")
    assert out.count(".log") == 3


@pytest.mark.parametrize("command", ["ls", "verify -q"])
def test_a_log_file_beside_the_partitions_is_nobodys_segment(cordwood, data, command):
    """Files in a directory that is not a partition are skipped."""
    (data / "notes").mkdir()
    (data / "notes" / SEGMENT).write_bytes(b"x")
    code, _, err = cordwood(f"segment {command} --data data")
    assert (code, err) == (0, f"data/notes/{SEGMENT} is not a segment file; skipped\n")


@pytest.mark.parametrize("command", ["ls", "verify -q"])
def test_only_the_named_topic_is_reported(cordwood, data, command):
    """With a topic argument, files of other topics are not reported."""
    (data / "u-0").mkdir()
    (data / "u-0" / SEGMENT).write_bytes(b"damaged")
    foreign(data, "../u-0/app.log")
    code, out, err = cordwood(f"segment {command} t --data data")
    assert (code, err, out.count(".log"), "u-0" in out) == (0, "", 3, False)
    assert cordwood(f"segment {command} nope --data data")[0] == 3


def broken(data: Path, how: str) -> Path:
    """Create a segment name that is a directory or a dangling symbolic link."""
    path = data / "t-0" / "00000000000000000900.log"
    if how == "directory":
        path.mkdir()
    else:
        path.symlink_to(data / "nowhere")
    return path


@pytest.mark.parametrize("how", ["directory", "dangling"])
def test_a_segment_that_cannot_be_read_is_a_row_and_exit_code_five(cordwood, data, how):
    """An unreadable segment gives exit code 5; the other segments are still verified."""
    path = broken(data, how)
    code, out, err = cordwood("segment verify -q --data data")
    assert code == 5
    assert f"data/t-0/{path.name} cannot be read: " in err
    assert out.count("clean") == 3
    assert "unreadable" in out
    code, out, _ = cordwood("segment ls --data data")
    assert (code, path.name in out) == (0, True)


@pytest.mark.parametrize(
    ("line", "code", "sentence"),
    [
        ("segment ls --data nowhere", 3, "nowhere has no segments"),
        ("segment ls --data file", 3, "file has no segments"),
        ("segment verify --data file", 3, "file has no segments"),
        ("segment dump file", 5, "file: corrupt after 0 bytes"),
        ("segment dump data", 2, "is a directory"),
        ("segment dump nowhere", 2, "does not exist"),
        ("cat t --data file", 3, "is not a cordwood data directory"),
        ("cat t --data nowhere", 3, "is not a cordwood data directory"),
        ("serve --config file", 2, "config file file is not TOML"),
        ("serve --config data", 1, "data: Is a directory"),
        ("serve --config nowhere", 2, "there is no config file at nowhere"),
        ("serve --data file --no-pipeline", 2, "choose another data directory"),
        ("certs init file", 1, "file: File exists"),
    ],
)
def test_what_is_no_such_file_is_one_sentence(cordwood, data, tmp_path, line, code, sentence):
    """A wrong or missing file gives a one-line error and the exit code for its cause."""
    (tmp_path / "file").write_bytes(b"text of no kind\xff\n")
    found, _, err = cordwood(line)
    assert (found, sentence in err, "Traceback" in err) == (code, True, False), err


def test_a_directory_in_the_place_of_a_segment_stops_cat_in_one_sentence(cordwood, data):
    """``cat`` fails with a one-line error if a segment path is a directory."""
    newest = max((data / "t-0").glob("*.log"))
    newest.unlink()
    newest.mkdir()
    code, _, err = cordwood("cat t --data data")
    assert (code, err) == (1, "cordwood: Is a directory\n")
