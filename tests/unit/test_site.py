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


@pytest.fixture(scope="module")
def pages():
    """Generate the pages of the site."""
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "scripts" / "site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make_pages(ROOT)


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
