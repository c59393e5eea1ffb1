"""Every command block of the README, the tutorials and other pages, played on a real broker.

What is printed is what the page says, but for times, ids and the width of columns.
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
    """As a reader would type it."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_prints_what_it_says(page: Path, tmp_path: Path):
    """Typed in order into one shell, from an empty directory.

    A page with ``<!-- serve -->`` takes for granted that a broker runs, one with ``<!-- spark -->``
    that Spark is installed.
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
    """The test above cannot pass by finding nothing."""
    typed = [step for step in steps_of(page.read_text()) if not step.file]
    assert len(typed) > 2
    assert any(step.printed for step in typed)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_is_not_played_is_set_up(page: Path):
    """Unplayed blocks hold make targets that exist, and pip."""
    targets = re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for file, kind, body in blocks_of(page.read_text()):
        for line in body.splitlines() if kind == "sh" and not file else []:
            command = line.partition("#")[0].split()
            known = command[:1] == ["make"] and set(command[1:]) <= set(targets)
            assert known or command[:2] == ["pip", "install"], line


@pytest.mark.parametrize("page", ALL_PAGES, ids=name_of)
def test_no_command_stands_in_a_block_that_nobody_plays(page: Path):
    """What can be typed is in a console block, or is set-up."""
    for _, kind, body in blocks_of(page.read_text()):
        if kind not in {"console", "sh"}:
            typed = re.findall(rf"^(?:\$ )?(?:{'|'.join(TYPED)}) .*", body, re.MULTILINE)
            assert typed == []


@pytest.mark.parametrize("page", ALL_PAGES, ids=name_of)
def test_commands_named_in_the_text_exist_with_their_flags(page: Path):
    """A page that teaches a flag nobody reads is found out at the worst time."""
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
    """Prompts begin commands, continuations join them, the rest is output; files are kept."""
    page = "<!-- file: a.py -->\n```python\nprint(1)\n```\n\n"
    page += "```console\n$ one \\\n> two\nx\n$ three\n```\n"
    assert list(steps_of(page)) == [
        Step("print(1)\n", file="a.py"),
        Step("one \\\ntwo", "x"),
        Step("three"),
    ]


def test_only_what_varies_is_forgiven():
    """Times, ids and widths may differ; a count may not."""
    assert settled("ACK 1794782240456  x\n") == settled("ACK 1694782240000 x")
    assert settled("ACK 2") != settled("ACK 3")
