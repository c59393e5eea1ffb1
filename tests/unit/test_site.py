"""The documentation site: navigation and links match the files in docs/."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_every_page_has_its_place_in_the_navigation():
    """Every page is in the navigation exactly once, and every entry has a page."""
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    listed = sorted(re.findall(r": (\S+\.md)$", nav, re.MULTILINE))
    pages = sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))
    assert listed == pages


def load_script(name):
    """Import a file of scripts/; the name ``site`` is the standard library's."""
    spec = importlib.util.spec_from_file_location(f"{name}_script", ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages():
    """Generate the pages of the site."""
    return load_script("site").make_pages(ROOT)


def test_every_link_of_the_site_leads_somewhere(pages):
    """Every link leads to a page or a file, including links to source files."""
    dead = []
    for name, text in pages.items():
        prose = re.sub(r"(`{3,}).*?\n\1\n", "", text, flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)\s#:]+)(?:#[^)\s]*)?\)", prose):
            target = os.path.normpath(Path(name).parent / link)
            if target not in pages and not (ROOT / "docs" / target).is_file():
                dead.append(f"{name}: {link}")
    assert dead == []


def test_a_linked_file_is_shown_as_it_is(pages):
    """The page of a linked source file contains the file's text unchanged."""
    config = (ROOT / "src" / "cordwood" / "config.py").read_text()
    assert config in pages["source/src/cordwood/config.py.md"]
    assert "source/src/cordwood/config.py.md" in pages["settings.md"]


def test_the_picture_of_the_landing_page_is_the_script_s():
    """The committed picture is what scripts/overview.py draws."""
    overview = load_script("overview")
    assert overview.OUTPUT.read_text() == overview.draw()
    assert overview.OUTPUT.name in (ROOT / "docs" / "index.md").read_text()


def test_no_page_promises_a_release():
    """Until there is a release, set-up commands install the clone, not the name."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*")]
    texts = {page.name: page.read_text() for page in pages if page.suffix in {".md", ".py"}}
    promised = re.compile(r"^ *pip install [^\n#`]*\bcordwood\b", re.MULTILINE)
    assert [name for name, text in texts.items() if promised.search(text)] == []
    shipped = [*(ROOT / "deploy").rglob("*.*"), *(ROOT / "src").rglob("*.py")]
    by_name = re.compile(r"pip install (?:-\S+ )*cordwood\b(?!\[)")
    assert [page.name for page in shipped if by_name.search(page.read_text())] == []
