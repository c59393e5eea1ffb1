"""What a SQL statement names, taken from the plan that Spark's own parser makes of it.

The text itself is never searched: comments, raw strings and quoted names are the parser's business.

A topic's filters may narrow what is read only when the statement reads that topic once: up to 4.3
Spark keeps what a filter left with the relation, and every other use of it would see no more. So a
topic is ``alone`` when the statement is a query that names it once, has no subquery inside an
expression (Spark may copy what such a query reads), and names no CTE twice. When in doubt, it is
not. In the same way all columns are read unless the plan consists of parts that are known to use
no column they do not name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cordwood.errors import InvalidOption
from cordwood.pipeline.source.schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXTS: Final = {"key_text": "key", "value_text": "value"}
_PLANS: Final = "org.apache.spark.sql.catalyst.plans.logical"
_PLAN: Final = f"{_PLANS}.LogicalPlan"
_COMMANDS: Final = (f"{_PLANS}.Command", f"{_PLANS}.ParsedStatement")
_RELATIONS: Final = {
    "UnresolvedRelation",
    "UnresolvedTable",
    "UnresolvedTableOrView",
    "UnresolvedView",
}
_CHOOSING: Final = {"Project", "Aggregate"}  # what they do not name goes no further
_NAMING: Final = {  # they use no column but those their expressions name
    *_CHOOSING,
    *(
        "Distinct",
        "Except",
        "Filter",
        "Generate",
        "GlobalLimit",
        "Intersect",
        "Join",
        "LateralJoin",
    ),
    *("LocalLimit", "LocalRelation", "Offset", "OneRowRelation", "PipeOperator"),
    *("RepartitionByExpression", "Sample", "Sort", "SubqueryAlias", "Union", "UnresolvedHaving"),
    *("UnresolvedInlineTable", "UnresolvedRelation", "UnresolvedWith"),
}
_ATTRIBUTES: Final = {  # inside a lambda every name is a variable until it is resolved
    "UnresolvedAttribute",
    "UnresolvedNamedLambdaVariable",
}
_ANY_COLUMN: Final = {  # expressions that may name columns in other ways
    "ExpressionWithUnresolvedIdentifier",
    "UnresolvedRegex",
    "UnresolvedStar",
    "UnresolvedStarExceptOrReplace",
}


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
    from py4j.java_gateway import JavaObject, is_instance_of

    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(text)  # noqa: SLF001
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - Spark's parser has no other listener
    is_query = not any(is_instance_of(gateway, plan, kind) for kind in _COMMANDS)
    found = _NamedTopics()
    if is_query:
        found.walk(plan)
    else:
        found.walk_command(
            plan, lambda it: isinstance(it, JavaObject) and is_instance_of(gateway, it, _PLAN)
        )
    named = match_topics(found.names, topics)
    return Statement(
        text=text,
        topics=named,
        alone=frozenset(filter(found.is_alone, named)) if is_query else frozenset(),
        columns=found.columns() if is_query else tuple(COLUMNS),
        is_query=is_query,
    )


@dataclass(slots=True)
class _NamedTopics:
    """What a parsed statement reads, by name, and how often."""

    names: Counter[str] = field(default_factory=Counter)
    ctes: set[str] = field(default_factory=set)
    has_subquery: bool = False
    attributes: set[str] = field(default_factory=set)
    needs_all: bool = False  # columns that no attribute names may be used

    def walk(self, node: Any, *, is_chosen: bool = False) -> None:
        """A query; ``is_chosen`` says that only what an expression names leaves this node."""
        kind = node.nodeName()
        inner = list(_each(node.innerChildren()))
        if kind == "UnresolvedRelation":
            self._name(node.multipartIdentifier())
            self.needs_all |= not is_chosen
        elif kind == "UnresolvedWith":
            self.ctes |= {alias.alias() for alias in inner}
        elif inner:
            self.has_subquery = True
        self.needs_all |= kind not in _NAMING
        if kind == "Join":
            self._walk_join(node.joinType())
        for expression in _each(node.expressions()):
            self._walk_expression(expression)
        for child in inner:
            self.walk(child)
        for child in _each(node.children()):
            self.walk(child, is_chosen=is_chosen or kind in _CHOOSING)

    def walk_command(self, node: Any, is_plan: Callable[[Any], bool]) -> None:
        """A command; some hold what they run on as a plain argument rather than as a child."""
        if node.nodeName() in _RELATIONS:
            self._name(node.multipartIdentifier())
        arguments, held = node.productIterator(), list(_each(node.innerChildren()))
        while arguments.hasNext():
            held += filter(is_plan, [arguments.next()])
        for child in [*held, *_each(node.children())]:
            self.walk_command(child, is_plan)

    def _name(self, parts: Any) -> None:
        self.names[".".join(_each(parts))] += 1

    def _walk_join(self, kind: Any) -> None:
        """Columns that two sides are matched by without an expression."""
        name = kind.getClass().getSimpleName()
        self.needs_all |= name == "NaturalJoin"
        if name == "UsingJoin":
            self.attributes |= {column.lower() for column in _each(kind.usingColumns())}

    def _walk_expression(self, expression: Any) -> None:
        kind = expression.getClass().getSimpleName()
        self.needs_all |= kind in _ANY_COLUMN
        if kind in _ATTRIBUTES:
            self.attributes |= {part.lower() for part in _each(expression.nameParts())}
        for child in _each(expression.children()):
            self._walk_expression(child)

    def columns(self) -> tuple[str, ...]:
        """Those that must be decoded; at least one, as rows are counted by it."""
        if self.needs_all:
            return tuple(COLUMNS)
        wanted = {TEXTS.get(name, name) for name in self.attributes}
        return tuple(name for name in COLUMNS if name.lower() in wanted) or ("offset",)

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
