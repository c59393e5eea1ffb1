"""The documents made ready for a site: links into the code lead to pages that show it.

In the repository a link such as ``../src/cordwood/errors.py`` opens the file. A site built from
``docs/`` alone has no such file, so everything linked outside becomes a page of its own under
``source/``: a file as a code block, a directory as a list of what is in it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(#[^)\s]*)?(?=\))")
LANGUAGES = {".py": "python", ".sh": "sh", ".toml": "toml", ".json": "json", ".yml": "yaml"}


def make_pages(root: Path = ROOT) -> dict[str, str]:
    """Path below ``docs/`` → text, for every document and every page they need besides."""
    docs = root / "docs"
    pages: dict[str, str] = {}
    wanted: set[str] = set()
    for path in sorted(docs.rglob("*.md")):
        name = path.relative_to(docs).as_posix()
        pages[name] = LINK.sub(partial(_turned, name, wanted), path.read_text())
    while wanted:
        target = wanted.pop()
        pages[_page(target)] = _shown(root, target, wanted, set(pages))
    return pages


def _turned(page: str, wanted: set[str], link: re.Match[str]) -> str:
    """The link as the site has it; notes what must be shown for that."""
    target = os.path.normpath(PurePosixPath("docs", page).parent / link[1])
    if target.startswith("docs" + os.sep) or target == "docs":
        return link[0]
    wanted.add(target)
    return _relative(_page(target), page) + (link[2] or "")


def _page(target: str) -> str:
    return f"source/{target}.md"


def _relative(target: str, page: str) -> str:
    return os.path.relpath(target, PurePosixPath(page).parent)


def _shown(root: Path, target: str, wanted: set[str], known: set[str]) -> str:
    path = root / target
    if path.is_dir():
        return f"# {target}\n\n" + "\n".join(_entries(path, target, wanted, known)) + "\n"
    text = path.read_text()
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"# {target}\n\n{fence}{LANGUAGES.get(path.suffix, '')}\n{text}\n{fence}\n"


def _entries(path: Path, target: str, wanted: set[str], known: set[str]) -> Iterator[str]:
    """One line a file; each is shown, too."""
    for entry in sorted(path.iterdir()):
        if entry.name.startswith((".", "__pycache__")):
            continue
        name = f"{target}/{entry.name}"
        if _page(name) not in known:
            wanted.add(name)
        yield f"- [{entry.name}]({_relative(_page(name), _page(target))})"


def main(directory: Path) -> None:
    """Write pages and pictures to ``directory/docs``, and the settings beside them."""
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(ROOT / "docs", directory / "docs")
    for name, text in make_pages().items():
        page = directory / "docs" / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text)
    shutil.copy(ROOT / "mkdocs.yml", directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
