"""The Spark session with the settings cordwood wants, embedded unless a master is named.

An embedded session binds to loopback, opens no UI, speaks only of errors, and keeps its workers
warm; its streaming settings cut the fixed cost of a micro-batch. On a cluster only those settings
are sent that are about the query, not the machine. ``conf`` wins over all; Java hears both.
With ``spark.cordwood.priority`` an embedded Spark leaves the cores to others (``priority``).

Starting Spark is the only effect here; no topic is read.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

from cordwood.errors import ConfigError, UnavailableError
from cordwood.pipeline.runtime import priority
from cordwood.pipeline.runtime.executors import wait_for_executors
from cordwood.pipeline.runtime.java import java_home
from cordwood.pipeline.worker_site import on_search_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EMBEDDED: Final = "local[*]"
CONNECT_PORT: Final = 15002  # Spark's own
REACH_S: Final = 10.0

_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_QUERY: Final = {  # right wherever the query runs
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.pollingDelay": "1",
}
_MACHINE: Final = {  # right on this machine only
    "spark.python.daemon.module": "cordwood.pipeline.runtime.daemon",
    _JAVA_OPTIONS: (  # Arrow checks every value's bounds: a fifth of a scan
        "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false "
        "-XX:+ExitOnOutOfMemoryError"  # else a thread that hands over results dies, and all wait
    ),
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "8",
}
_DRIVER: Final = {  # right for every driver that is started here
    "spark.python.authenticate.socketTimeout": "10m",  # a result that Python asks for late
}
_PATIENCE: Final = {  # on a busy machine all comes late; what has died is noticed by its socket
    "spark.network.timeout": "1h",  # heartbeats of the executor within this Java, and RPC
    "spark.sql.broadcastTimeout": "3600",
}
_CHECKPOINTS: Final = {  # local disk: rename is atomic, a checksum file beside each is not needed
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}


def plan_settings(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Every setting the session is built with, the caller's last; Java hears both."""
    ours = {**_QUERY, **({} if is_connect(master) else _DRIVER)}
    ours |= _MACHINE | _PATIENCE | _CHECKPOINTS if is_local(master) else {}
    said = {**ours, **conf}
    if _JAVA_OPTIONS in ours and _JAVA_OPTIONS in conf:
        said[_JAVA_OPTIONS] = f"{ours[_JAVA_OPTIONS]} {conf[_JAVA_OPTIONS]}"
    return said


def is_local(master: str) -> bool:
    """Whether Spark runs in a child of this process."""
    return master.startswith("local")


def is_connect(master: str) -> bool:
    """Whether Spark's driver runs in a Spark Connect server, which has its own settings."""
    return master.startswith("sc:")


def is_remote(spark: SparkSession) -> bool:
    """Whether the session is Spark Connect's: its driver is elsewhere, functions travel there."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def parallelism(spark: SparkSession) -> int:
    """How many tasks the session's executors run at once; 1 where nobody can tell."""
    return told_parallelism(spark) or 1


def told_parallelism(spark: SparkSession) -> int | None:
    """The same as Spark counts it now; None through Spark Connect, unless a setting says it.

    On a cluster the first call waits until the executors have registered (``executors``).
    """
    if is_remote(spark):
        setting = spark.conf.get("spark.default.parallelism", None)
        return int(setting) if setting else None
    context = spark.sparkContext
    if not is_local(context.master):
        wait_for_executors(context)
    return max(1, int(context.defaultParallelism))


def open_session(
    app: str = "cordwood",
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    remote: str | None = None,
) -> SparkSession:
    """A running session: embedded, on ``master``, or through Spark Connect at ``remote``."""
    if master and remote:
        raise ConfigError("name a master or a Spark Connect remote, not both")
    SparkSession = _import_spark()  # noqa: N806 - it is a class
    where = remote or master or EMBEDDED
    settings = plan_settings(where, conf or {})
    rank = priority.check_word(settings.get(priority.SETTING, priority.NORMAL))
    if is_local(where):
        priority.yield_cores(rank)  # before there is a Java to inherit it
    builder = SparkSession.builder.appName(app)
    if remote:
        check_remote(remote)
        builder = builder.remote(remote)
    else:
        _set_environment()
        builder = builder.master(master or EMBEDDED)
    for name, value in settings.items():
        builder = builder.config(name, value)
    with on_search_path():  # of Java, and so of the workers that it starts on this machine
        return builder.getOrCreate()


def check_remote(remote: str) -> None:
    """Refuse a server that is not there; Spark's client would try for ten minutes, in silence."""
    if importlib.util.find_spec("grpc") is None:
        raise ConfigError("Spark Connect needs grpcio: run `pip install cordwood[connect]`")
    url = urlsplit(remote)
    try:
        port = url.port or CONNECT_PORT
    except ValueError:
        port = 0
    if url.scheme != "sc" or not url.hostname or not port:
        raise ConfigError(f"a Spark Connect server is named sc://host:port, not {remote}")
    try:
        socket.create_connection((url.hostname, port), REACH_S).close()
    except OSError as error:
        why = error.strerror or error
        raise UnavailableError(
            f"no Spark Connect server answers at {url.hostname}:{port} ({why}); start one with "
            "Spark's sbin/start-connect-server.sh, or name another"
        ) from None


def _import_spark() -> type[SparkSession]:
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise ConfigError('Spark is not installed: run `pip install "cordwood[spark]"`') from None
    return cast("type[SparkSession]", SparkSession)


def _set_environment() -> None:
    """What Spark reads from the environment before it starts its Java and its workers."""
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
