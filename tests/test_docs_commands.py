"""Run every command block of the README, the tutorials and other pages on a real broker.

The output must match the page, except for times, ids and the width of columns.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
import typer

from cordwood.cli.app import app
from support.doc_session import Session, Step, blocks_of, prose_of, settled, steps_of

ROOT = Path(__file__).resolve().parent.parent
SERVE = Step("cordwood serve --data data --no-pipeline &")
SPARK = [pytest.mark.spark, pytest.mark.slow]
ALL_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [
    pytest.param(page, marks=SPARK if "<!-- spark -->" in page.read_text() else ())
    for page in ALL_PAGES
    if "```console\n" in page.read_text() or page.parent.name == "tutorials"
]
TOOLS = ("kcat", "nc", "curl")
TYPED = ("cordwood", "make", "pip", "python", *TOOLS)


def name_of(path: Path) -> str:
    """Return the path relative to the repository."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_prints_what_it_says(page: Path, tmp_path: Path):
    """A page's commands, typed in order into one shell in an empty directory, print its output.

    A page with ``<!-- serve -->`` requires a running broker, and one with ``<!-- spark -->``
    requires Spark.
    """
    steps = list(steps_of(page.read_text()))
    for tool in TOOLS:
        if any(re.search(rf"\b{tool}\b", step.text) for step in steps) and not shutil.which(tool):
            pytest.skip(f"missing tool: {tool}")
    session = Session(tmp_path)
    try:
        if "<!-- serve -->" in page.read_text():
            session.play(SERVE)
        for step in steps:
            printed = session.play(step)
            assert settled(printed) == settled(step.printed), f"$ {step.text}\n{printed}"
    finally:
        session.close()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_has_commands_that_are_played(page: Path):
    """Every page has commands with output, so that the test above checks something."""
    typed = [step for step in steps_of(page.read_text()) if not step.file]
    assert len(typed) > 2
    assert any(step.printed for step in typed)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_is_not_played_is_set_up(page: Path):
    """Blocks that are not run contain only existing make targets and pip."""
    targets = re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for file, kind, body in blocks_of(page.read_text()):
        for line in body.splitlines() if kind == "sh" and not file else []:
            command = line.partition("#")[0].split()
            known = command[:1] == ["make"] and set(command[1:]) <= set(targets)
            assert known or command[:2] == ["pip", "install"], line


@pytest.mark.parametrize("page", ALL_PAGES, ids=name_of)
def test_no_command_stands_in_a_block_that_nobody_plays(page: Path):
    """Every command is in a console block, unless it is set-up."""
    for _, kind, body in blocks_of(page.read_text()):
        if kind not in {"console", "sh"}:
            typed = re.findall(rf"^(?:\$ )?(?:{'|'.join(TYPED)}) .*", body, re.MULTILINE)
            assert typed == []


@pytest.mark.parametrize("page", ALL_PAGES, ids=name_of)
def test_commands_named_in_the_text_exist_with_their_flags(page: Path):
    """Every command and flag that a page mentions exists in the command line."""
    root = typer.main.get_command(app)
    for span in re.findall(r"`(cordwood [a-z][^`]*)`", prose_of(page.read_text())):
        _, name, *words = shlex.split(" ".join(span.split()).replace("…", ""))
        command = root.get_command(None, name)
        assert command, span
        if words and hasattr(command, "commands") and words[0] in command.commands:
            command = command.commands[words[0]]
        known = {"-h", "--help"}
        known |= {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
        assert {word for word in words if re.match("--?[a-z]", word)} <= known, span


def test_console_block_is_read_as_typed_and_printed_lines():
    """``$`` begins a command and ``>`` continues it; the rest is output, and files are kept."""
    page = "<!-- file: a.py -->\n```python\nprint(1)\n```\n\n"
    page += "```console\n$ one \\\n> two\nx\n$ three\n```\n"
    assert list(steps_of(page)) == [
        Step("print(1)\n", file="a.py"),
        Step("one \\\ntwo", "x"),
        Step("three"),
    ]


def test_only_what_varies_is_forgiven():
    """Times, ids and spacing may differ; a count may not."""
    assert settled("ACK 1794782240456  x\n") == settled("ACK 1694782240000 x")
    assert settled("ACK 2") != settled("ACK 3")
