"""Find the topics and columns that a SQL statement uses, from the plan of Spark's own parser.

Never searches the text itself: the parser handles comments, raw strings and quoted names.

Filters may be pushed down to a topic only if the statement reads that topic once. Up to 4.3, Spark
keeps a pushed-down filter with the relation, so every other use of the relation would see only the
filtered records. So a topic is ``alone`` if the statement is a query that names it once, has no
subquery inside an expression (Spark may copy relations that such a query reads), and names no CTE
twice. In doubt, a topic is not ``alone``. Likewise, all columns are read unless every node of the
plan is known to use only columns that it names.
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
_CHOOSING: Final = {"Project", "Aggregate"}  # output only columns that their expressions name
_NAMING: Final = {  # use only columns that their expressions name
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
_ATTRIBUTES: Final = {  # inside a lambda, every name is parsed as a lambda variable
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
    """One statement, and the topics and columns that it needs."""

    text: str
    topics: frozenset[str]  # the topics it names
    alone: frozenset[str]  # topics it certainly reads only once
    columns: tuple[str, ...]
    is_query: bool  # not a command, so it does not change the session


def read_statement(spark: SparkSession, text: str, topics: Collection[str]) -> Statement:
    """Parse a statement and find what it uses; raises Spark's ``ParseException``."""
    from py4j.java_gateway import JavaObject, is_instance_of

    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(text)  # noqa: SLF001
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - Spark's parser has no public API
    is_query = not any(is_instance_of(gateway, plan, kind) for kind in _COMMANDS)
    used = _NamedTopics()
    if is_query:
        used.walk(plan)
    else:
        used.walk_command(
            plan, lambda it: isinstance(it, JavaObject) and is_instance_of(gateway, it, _PLAN)
        )
    named = match_topics(used.names, topics)
    return Statement(
        text=text,
        topics=named,
        alone=frozenset(filter(used.is_alone, named)) if is_query else frozenset(),
        columns=used.columns() if is_query else tuple(COLUMNS),
        is_query=is_query,
    )


@dataclass(slots=True)
class _NamedTopics:
    """The names that a parsed statement reads, and how often."""

    names: Counter[str] = field(default_factory=Counter)
    ctes: set[str] = field(default_factory=set)
    has_subquery: bool = False
    attributes: set[str] = field(default_factory=set)
    needs_all: bool = False  # the statement may use columns that no attribute names

    def walk(self, node: Any, *, is_chosen: bool = False) -> None:
        """Walk a query plan; ``is_chosen``: a node above outputs only columns it names."""
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
        """Walk a command; some hold their relation as an argument rather than as a child."""
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
        """Find the columns of a join that has no join expression (USING, NATURAL)."""
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
        """The columns to decode; at least one, because it determines the number of rows."""
        if self.needs_all:
            return tuple(COLUMNS)
        wanted = {TEXTS.get(name, name) for name in self.attributes}
        return tuple(name for name in COLUMNS if name.lower() in wanted) or ("offset",)

    def is_alone(self, topic: str) -> bool:
        if self.has_subquery or any(self._count(cte) > 1 for cte in self.ctes):
            return False
        return self._count(topic) == 1

    def _count(self, name: str) -> int:
        """How often a name is used; Spark compares names without regard to case."""
        return sum(n for each, n in self.names.items() if each.lower() == name.lower())


def _each(sequence: Any) -> Iterator[Any]:
    """Iterate over a Scala sequence through py4j."""
    return (sequence.apply(index) for index in range(sequence.size()))


def match_topics(names: Iterable[str], topics: Collection[str]) -> frozenset[str]:
    """The topics with these names; case matters only between topics that differ only in case."""
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
