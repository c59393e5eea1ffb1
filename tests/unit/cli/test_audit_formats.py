"""The machine-readable output of ``cordwood audit``."""

import json

from cordwood.cli.commands.audit import _show
from cordwood.cli.output.row_printer import Format

REPORT = {
    "ok": False,
    "partitions": [{"topic": "t", "partition": 0, "missing": 1, "ok": False}],
    "books": [{"window": "2026-11-16", "missing": 0, "ok": True}],
    "samples": [{"verdict": "missing", "partition": 0, "offset": 7}],
}


def test_each_format_is_what_its_name_says(capsys):
    """JSON is the whole report, NDJSON has one line per entry, and CSV lists the partitions."""
    _show(REPORT, Format.JSON)
    assert json.loads(capsys.readouterr().out) == REPORT
    _show(REPORT, Format.NDJSON)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.pop("of") for line in lines] == ["partitions", "books", "samples"]
    assert lines == [*REPORT["partitions"], *REPORT["books"], *REPORT["samples"]]
    _show(REPORT, Format.CSV)
    assert capsys.readouterr().out == "topic,partition,missing,ok\nt,0,1,false\n"
