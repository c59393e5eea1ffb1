"""The columns of a topic's rows in Spark.

Names, types, order and nullability are those of Spark's Kafka source, so a job migrates by changing
its format. Spark does not tell a Python data source which columns a query uses. So a declared
schema or the option ``columns`` selects them, and the reader decodes only those.

Pure: types are written as Spark SQL type names, and Spark itself is not imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cordwood.config import nearest
from cordwood.errors import InvalidOption

HEADERS: Final = "headers"
COLUMNS: Final[Mapping[str, str]] = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    HEADERS: "array<struct<key:string,value:binary>>",
}
FIXED_COLUMNS: Final = tuple(name for name in COLUMNS if name != HEADERS)


def ddl(names: Iterable[str]) -> str:
    """The schema of these columns as a Spark SQL DDL string."""
    return ", ".join(f"`{name}` {COLUMNS[name]}" for name in names)


def parse_columns(text: str) -> tuple[str, ...]:
    """Parse the option ``columns``: column names in the requested order."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise InvalidOption("option columns is empty; name at least one column, such as key,offset")
    for name in names:
        check_name(name)
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise InvalidOption(f"option columns names {', '.join(sorted(twice))} twice")
    return names


def check_name(name: str) -> None:
    """Raise ``InvalidOption`` for an unknown column."""
    if name not in COLUMNS:
        raise InvalidOption(
            f"there is no column {name}{nearest(name, COLUMNS)} (columns: {', '.join(COLUMNS)})"
        )


def check_schema(fields: Sequence[Any]) -> tuple[str, ...]:
    """The column names of a declared schema; raises ``InvalidOption`` on a wrong name or type."""
    for field in fields:
        check_name(field.name)
        declared = field.dataType.simpleString()
        if declared != COLUMNS[field.name]:
            raise InvalidOption(
                f"column {field.name} is {COLUMNS[field.name]}, the declared schema says "
                f"{declared}; declare it as {COLUMNS[field.name]} and cast in the query"
            )
    return tuple(field.name for field in fields)
