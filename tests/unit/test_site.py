"""mkdocs.yml against docs/: a page nobody can navigate to is not read."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_page_has_its_place_in_the_navigation():
    """Each page once, and no entry without a page."""
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    listed = sorted(re.findall(r": (\S+\.md)$", nav, re.MULTILINE))
    pages = sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))
    assert listed == pages
