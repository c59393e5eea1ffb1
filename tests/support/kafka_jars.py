"""The jars that ``scripts/kafka_jars.sh`` fetched, if it was run."""

from __future__ import annotations

import os
from pathlib import Path

JARS = os.environ.get("CORDWOOD_KAFKA_JARS", "")
FETCH = "(scripts/kafka_jars.sh DIR, CORDWOOD_KAFKA_JARS=DIR)"
CONNECTOR = (
    "spark-sql-kafka-*",
    "spark-token-provider-kafka-*",
    "kafka-clients-*",
    "commons-pool2-*",
)


def has(*patterns: str) -> bool:
    """Return whether there is a jar for each pattern."""
    return bool(JARS) and all(list(Path(JARS).glob(f"{pattern}.jar")) for pattern in patterns)


def connector_jars() -> str:
    """Return Spark's Kafka connector as a value for ``spark.jars``, or an empty string."""
    if not has(*CONNECTOR):
        return ""
    return ",".join(str(jar) for pattern in CONNECTOR for jar in Path(JARS).glob(f"{pattern}.jar"))
