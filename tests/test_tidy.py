"""Rules for the code base itself, which reviewers would otherwise have to check every time."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from scripts import docs

ROOT = Path(__file__).resolve().parent.parent
SOURCE = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PROGRAMS = [  # all but this file, which contains the patterns it searches for
    path
    for top in ("src", "tests", "bench", "scripts")
    for path in sorted((ROOT / top).rglob("*"))
    if path.suffix in {".py", ".sh", ".txt"} and path != Path(__file__).resolve()
]
TEXTS = [*docs.documents(), ROOT / "CHANGELOG.md", ROOT / "Makefile", ROOT / "pyproject.toml"]

LINES_MAX = 500  # a longer file should be divided
# Importing these takes longer than a broker start may; they are loaded at their first use.
HEAVY = {"cryptography", "numba", "pandas", "pyarrow", "pyspark", "rich"}
STANDARD = {*sys.stdlib_module_names, "compression"}  # the last since Python 3.14
OUR_PACKAGES = {"cordwood", "pyspark_cordwood"}
# Modules whose distribution has another name or is a dependency of a declared one.
PROVIDED_BY = {"backports": "backports.zstd", "llvmlite": "numba", "py4j": "pyspark"}
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # fields that hold statements
# Tests that need a real sleep, each with its reason; all others wait for a condition.
SLEEPS_ALLOWED: dict[str, str] = {}
# Public names: the async client mirrors the blocking one, and tests have their own ``Broker``.
MIRRORED = {"Broker", "Client", "Producer", "Subscription"}


def name_of(path: Path) -> str:
    """Return the path relative to the repository."""
    return str(path.relative_to(ROOT))


@dataclass(frozen=True)
class Outline:
    """What the rules in this file need to know of one file.

    Its syntax tree is not kept: garbage collection would walk the trees of all files repeatedly.
    """

    is_documented: bool
    tests: list[tuple[str, bool]]  # name, and whether it has a docstring
    imported: set[str]  # top-level names, including imports inside functions
    is_sleeping: bool


@functools.cache
def outline_of(path: Path) -> Outline:
    """Parse a file once."""
    text = path.read_text()
    module = ast.parse(text, filename=name_of(path))
    found = list(statements(module))
    tests = [
        (each.name, bool(ast.get_docstring(each)))
        for each in found
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        and each.name.startswith("test_")
    ]
    imported = {name for each in found for name in imports(each)}
    is_sleeping = "sleep" in text and any(map(is_sleep, ast.walk(module)))
    return Outline(bool(ast.get_docstring(module)), tests, imported, is_sleeping)


def statements(module: ast.Module) -> Iterator[ast.AST]:
    """Yield every statement at any depth; expressions, nine of ten nodes, are not visited."""
    unseen: list[ast.AST] = [module]
    while unseen:
        node = unseen.pop()
        yield node
        for block in BLOCKS:
            unseen += getattr(node, block, ())


def imports(node: ast.AST) -> list[str]:
    """Return the top-level names that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module.partition(".")[0]]
    return []


def is_sleep(node: ast.AST) -> bool:
    """Return whether it calls ``sleep(…)``, ``time.sleep(…)`` or ``asyncio.sleep(…)``."""
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr == "sleep" and ast.unparse(function.value) in {"time", "asyncio"}
    return isinstance(function, ast.Name) and function.id == "sleep"


def test_generated_documents_are_fresh():
    """The generated documents match what ``make docs`` would write."""
    assert [name_of(page) for page in docs.stale()] == []


def test_every_module_says_what_it_does():
    """Every module has a docstring, so that a reader knows whether to open it."""
    assert [name_of(path) for path in SOURCE if not outline_of(path).is_documented] == []


def test_every_package_has_an_init_module():
    """A directory without ``__init__.py`` is invisible to import-linter, so it has no layer."""
    packages = {path.parent for path in SOURCE}
    missing = [name_of(each) for each in sorted(packages) if not (each / "__init__.py").exists()]
    assert missing == []


def test_layers_are_kept():
    """import-linter agrees that packages import downwards only."""
    lint = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run(
        [lint, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_nothing_heavy_is_imported_before_it_is_needed():
    """Import cost is start-up cost: every top-level package loads without heavy libraries."""
    packages = sorted(
        f"cordwood.{path.stem}"
        for path in (ROOT / "src" / "cordwood").iterdir()
        if path.suffix == ".py" or list(path.glob("*.py"))
    )
    program = f"import sys; import {', '.join(packages)}; print(*{HEAVY!r} & set(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", program.replace("cordwood.__init__", "cordwood")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.stdout.split(), run.stderr) == ([], "")


def test_everything_imported_is_a_declared_dependency():
    """A fresh installation has what it imports: the core alone, the Spark part with [spark]."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    core = project["dependencies"]
    more = [each for name in ("spark", "jdk", "s3", "delta") for each in extras[name]]
    undeclared = {
        f"{name_of(path)}: {module}"
        for path in SOURCE
        for module in outline_of(path).imported - STANDARD - OUR_PACKAGES
        if not is_declared(module, core + (more if is_sparks(path) else []))
        and not (module == "pytest" and path.name == "testing_plugin.py")  # pytest loads it
        and not (module == "confluent_kafka" and "lab" in path.parts)  # optional
        and (path.name, module) not in USED_IF_THERE
    }
    assert sorted(undeclared) == []


USED_IF_THERE = {("storage.py", "obstore"), ("bundle.py", "isal")}  # optional for a broker


def is_sparks(path: Path) -> bool:
    """Return whether the file is only used with ``cordwood[spark]``."""
    return "pipeline" in path.parts or path.name in {"spark.py", "arrow.py"}


def is_declared(module: str, requirements: list[str]) -> bool:
    """Return whether one of the requirements provides the module."""
    names = {re.split(r"[^\w.-]", line)[0].replace("-", "_").lower() for line in requirements}
    return PROVIDED_BY.get(module, module).replace("-", "_").lower() in names


def test_nothing_is_left_to_do_in_passing():
    """Open tasks are issues, not comments."""
    marks = re.compile(r"\b(TODO|FIXME|XXX)\b")
    found = [name_of(path) for path in [*PROGRAMS, *TEXTS] if marks.search(path.read_text())]
    assert found == []


def test_every_test_is_named_by_a_sentence():
    """A test's name has at least three words."""
    short = [
        f"{name_of(path)}::{name}"
        for path in TESTS
        for name, _ in outline_of(path).tests
        if len(name.removeprefix("test_").split("_")) < 3
    ]
    assert short == []


def test_every_test_states_its_rule():
    """Every test has a docstring that states its rule."""
    silent = [
        f"{name_of(path)}::{name}"
        for path in TESTS
        for name, states_its_rule in outline_of(path).tests
        if not states_its_rule
    ]
    assert silent == []


def test_no_test_waits_by_sleeping():
    """Tests wait for conditions and never sleep."""
    sleepers = {name_of(path) for path in TESTS if outline_of(path).is_sleeping}
    assert sorted(sleepers - set(SLEEPS_ALLOWED)) == []
    assert sorted(set(SLEEPS_ALLOWED) - sleepers) == [], "allowed, but no longer there"


def test_no_source_file_swallows_the_others():
    """No source file is longer than the limit."""
    sizes = {name_of(path): len(path.read_text().splitlines()) for path in SOURCE}
    assert {name: lines for name, lines in sizes.items() if lines > LINES_MAX} == {}


def test_no_class_name_has_two_meanings():
    """A class name is used once in the package."""
    homes: dict[str, list[str]] = {}
    for path in SOURCE:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(name_of(path))
    twice = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert {name: paths for name, paths in twice.items() if name not in MIRRORED} == {}


def test_no_module_is_called_by_what_it_is_not():
    """Module names such as ``utils`` or ``helpers`` do not say what a module does."""
    vague = {"utils", "util", "helpers", "helper", "base", "common", "manager", "misc"}
    assert [name_of(path) for path in SOURCE if path.stem in vague] == []


def test_no_file_names_a_machine_or_a_registry():
    """No file contains a home directory or a package host, so it builds anywhere."""
    places = re.compile(r"/home/\w|/root/|/work/|/Users/\w|index-url|pypi\.org|deb\.debian\.org")
    found = [
        f"{name_of(path)}: {match[0]}"
        for path in [*PROGRAMS, *TEXTS]
        for match in places.finditer(path.read_text())
    ]
    assert found == []


def links_in(page: Path) -> Iterator[str]:
    """Return the relative link targets of a page."""
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            yield target


@pytest.mark.parametrize("page", [*docs.documents(), ROOT / "CHANGELOG.md"], ids=name_of)
def test_every_link_of_a_document_leads_somewhere(page: Path):
    """Every relative link points to a file of this repository."""
    broken = [target for target in links_in(page) if not (page.parent / target).exists()]
    assert broken == []


def test_map_of_the_readme_shows_the_packages_as_they_are():
    """Every entry of the map exists, and every top-level module and package is on it."""
    found = re.search(
        r"```text\n(src/cordwood/.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    assert found, "README.md has no map that begins with src/cordwood/"
    entries = {line.split()[0] for line in found[1].splitlines() if line.startswith("  ")}
    package = ROOT / "src" / "cordwood"
    modules = {
        path.name + ("/" if path.is_dir() else "")
        for path in package.iterdir()
        if (path.suffix == ".py" and path.stem != "__init__") or list(path.glob("*.py"))
    }
    assert entries == modules


def test_changelog_has_a_place_for_what_is_not_released():
    """As in Keep a Changelog, the newest section is called Unreleased."""
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "[Unreleased]"


def test_decisions_are_numbered_without_gaps_and_say_what_they_cost():
    """Every decision page has the sections Problem, Choice, Cost and When to revisit."""
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        headings = re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE)
        assert headings == ["Problem", "Choice", "Cost", "When to revisit"], page.name
