"""How jobs read topics: from segment files where this machine reaches them, else from the broker.

A job reads committed records unless it copies the log as it is. Tasks read a topic by its name, so
a job checks at its end that the name still means the same topic (``unchanged_topic``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from cordwood.errors import CordwoodError, StaleManifest
from cordwood.pipeline.runtime.broker_api import BrokerApi
from cordwood.pipeline.runtime.session import known_parallelism
from cordwood.pipeline.runtime.staging import StagingTarget
from cordwood.pipeline.runtime.tls_options import encode_tls
from cordwood.pipeline.source.identity import data_id_at
from cordwood.pipeline.source.options import COMMITTED, SourceOptions, parse_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_options(target: StagingTarget, *topics: str, **more: str) -> dict[str, str]:
    """Return source options that read these topics' committed records; ``more`` are added."""
    options = {**COMMITTED, "subscribe": ",".join(topics), **more}
    if target.where.servers:
        options |= {"kafka.bootstrap.servers": target.where.servers, **encode_tls(target.where.tls)}
    if target.is_reachable():
        options["path"] = target.data
    return options


def whole_log_options(api: BrokerApi, topic: str) -> SourceOptions:
    """Return options that read every batch of a topic, also those of aborted transactions."""
    options = read_options(StagingTarget.of(api), topic)
    parsed = parse_options(options, streaming=False)
    return replace(parsed, committed=False, data_id=data_id_at(options.get("path")))


def read_topics(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Read topics as a DataFrame, with a task for every core unless the options say otherwise."""
    cores = known_parallelism(spark)
    reader = spark.read.format("cordwood")
    if cores and "parallelism" not in options:
        reader = reader.option("parallelism", str(cores))
    return reader.options(**options).load()


@contextmanager
def unchanged_topic(api: BrokerApi, topic: str, topic_id: str) -> Iterator[None]:
    """Check after the body that the topic was not replaced; raises ``StaleManifest`` if it was.

    An error of the body is raised unless the replaced topic explains it.
    """
    try:
        yield
    except CordwoodError:
        _check_topic(api, topic, topic_id)
        raise
    _check_topic(api, topic, topic_id)


def _check_topic(api: BrokerApi, topic: str, topic_id: str) -> None:
    if api.archive(topic).id != topic_id:
        raise StaleManifest(
            f"topic {topic} was deleted and created again while it was read; nothing was "
            "published; run the command again"
        )
