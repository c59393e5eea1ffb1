"""What a SQL statement names: read by Spark's own parser, before anything is resolved.

A topic's filters may narrow what is read only when the statement reads that topic once: up to 4.3
Spark keeps what a filter left with the relation, and every other use of it would see no more. So a
topic is ``alone`` when the statement is a query that names it once, has no subquery inside an
expression (Spark may copy what such a query reads), and names no CTE twice. When in doubt, it is
not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cordwood.errors import InvalidOption
from cordwood.pipeline.frames import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXTS: Final = {"key_text": "key", "value_text": "value"}
_PLANS: Final = "org.apache.spark.sql.catalyst.plans.logical"
_COMMANDS: Final = (f"{_PLANS}.Command", f"{_PLANS}.ParsedStatement")
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COUNT_ALL: Final = re.compile(r"count\s*\(\s*\*\s*\)", re.IGNORECASE)
_STRING: Final = re.compile(r"'(?:[^'\\]|\\.|'')*'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement, and what it needs of the topics."""

    text: str
    topics: frozenset[str]  # those it names
    alone: frozenset[str]  # those of them that it reads once, whatever Spark makes of it
    columns: tuple[str, ...]
    is_query: bool  # it leaves nothing behind in the session


def read_statement(spark: SparkSession, text: str, topics: Collection[str]) -> Statement:
    """Raises Spark's ``ParseException``."""
    from py4j.java_gateway import is_instance_of

    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(text)  # noqa: SLF001
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - Spark's parser has no other door
    is_query = not any(is_instance_of(gateway, plan, kind) for kind in _COMMANDS)
    found = _Found()
    found.walk(plan)
    named = match_topics(found.names, topics)
    if not is_query:  # some keep what they name where no walk finds it
        named |= match_topics(find_topics(text, topics), topics)
    return Statement(
        text=text,
        topics=named,
        alone=frozenset(filter(found.is_alone, named)) if is_query else frozenset(),
        columns=find_columns(text),
        is_query=is_query,
    )


@dataclass(slots=True)
class _Found:
    """What a parsed query reads, by name, and how often."""

    names: Counter[str] = field(default_factory=Counter)
    ctes: set[str] = field(default_factory=set)
    has_subquery: bool = False

    def walk(self, node: Any) -> None:
        kind = node.getClass().getSimpleName()
        inner = list(_each(node.innerChildren()))
        if kind == "UnresolvedRelation":
            self.names[".".join(_each(node.multipartIdentifier()))] += 1
        elif kind == "UnresolvedWith":
            self.ctes |= {alias.alias() for alias in inner}
        elif inner:
            self.has_subquery = True
        for child in [*inner, *_each(node.children())]:
            self.walk(child)

    def is_alone(self, topic: str) -> bool:
        if self.has_subquery or any(self._count(cte) > 1 for cte in self.ctes):
            return False
        return self._count(topic) == 1

    def _count(self, name: str) -> int:
        """Spark's names do not care for case."""
        return sum(n for each, n in self.names.items() if each.lower() == name.lower())


def _each(sequence: Any) -> Iterator[Any]:
    """A Scala sequence, as Java hands it out."""
    return (sequence.apply(index) for index in range(sequence.size()))


def match_topics(names: Iterable[str], topics: Collection[str]) -> frozenset[str]:
    """The topics of those names; case decides only between topics that differ in nothing else."""
    by_name: dict[str, list[str]] = {}
    for topic in topics:
        by_name.setdefault(topic.lower(), []).append(topic)
    matched = {
        name if name in alike else alike[0]
        for name in names
        if (alike := by_name.get(name.lower()))
    }
    if len({topic.lower() for topic in matched}) < len(matched):
        raise InvalidOption(
            "topics that differ only in case have one name in Spark; name one of them at a time"
        )
    return frozenset(matched)


def find_topics(text: str, topics: Iterable[str]) -> list[str]:
    """The topics a text names, in order; Spark's names do not care for case, nor does this."""
    code = _STRING.sub("''", text)

    def is_named(topic: str) -> bool:
        word = rf"(?<![\w.-]){re.escape(topic)}(?![\w-])"
        return re.search(word, code, re.IGNORECASE) is not None

    return sorted(filter(is_named, topics))


def find_columns(query: str) -> tuple[str, ...]:
    """The columns a query may use; all of them when it says ``*`` or cannot be told."""
    code = _COUNT_ALL.sub("count(1)", _STRING.sub("''", query))
    words = {word.lower() for word in _WORD.findall(code)}
    if "*" in code or words & {"natural", "table", "using"}:
        return tuple(COLUMNS)
    wanted = {TEXTS.get(word, word) for word in words}
    named = tuple(name for name in COLUMNS if name.lower() in wanted)
    return named or ("offset",)
