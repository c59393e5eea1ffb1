"""Open a Spark session with cordwood's settings: embedded, on a cluster, or by Spark Connect.

An embedded session binds to loopback, opens no UI, logs only errors, and forks its Python workers
with the kernels loaded; its streaming settings reduce the fixed cost of a micro-batch. On a cluster
only settings of the query and the driver are sent, not those of the machine. The caller's ``conf``
overrides ours, except that Java options are combined. ``spark.cordwood.priority`` lowers the
scheduling priority of an embedded Spark (``priority``).

Starts Spark and sets environment variables for it; never reads a topic.
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
from cordwood.extras import install_command
from cordwood.pipeline.runtime import priority
from cordwood.pipeline.runtime.executors import wait_for_executors
from cordwood.pipeline.runtime.java import java_home
from cordwood.pipeline.runtime.worker_python import VARIABLES
from cordwood.pipeline.worker_site import on_search_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EMBEDDED: Final = "local[*]"
CONNECT_PORT: Final = 15002  # Spark's default
REACH_S: Final = 10.0

_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_QUERY: Final = {  # apply wherever the query runs
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.pollingDelay": "1",
}
_MACHINE: Final = {  # apply on this machine only
    "spark.python.daemon.module": "cordwood.pipeline.runtime.daemon",
    _JAVA_OPTIONS: (  # Arrow's bounds checks take a fifth of the time of a scan
        "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false "
        "-XX:+ExitOnOutOfMemoryError"  # else a thread that returns results dies and the job hangs
    ),
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "8",
}
_DRIVER: Final = {  # apply to every driver that is started here
    "spark.python.authenticate.socketTimeout": "10m",  # Python may fetch a result late
}
_PATIENCE: Final = {  # a busy machine is slow; a dead process is noticed by its closed socket
    "spark.network.timeout": "1h",  # heartbeats of the executor inside the driver's JVM, and RPC
    "spark.sql.broadcastTimeout": "3600",
}
_CHECKPOINTS: Final = {  # on local disk rename is atomic, so checksum files are not needed
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}


def plan_settings(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    """All settings of the session; the caller's override ours, but Java options are combined."""
    ours = {**_QUERY, **({} if is_connect(master) else _DRIVER)}
    ours |= _MACHINE | _PATIENCE | _CHECKPOINTS if is_local(master) else {}
    settings = {**ours, **conf}
    if _JAVA_OPTIONS in ours and _JAVA_OPTIONS in conf:
        settings[_JAVA_OPTIONS] = f"{ours[_JAVA_OPTIONS]} {conf[_JAVA_OPTIONS]}"
    return settings


def is_local(master: str) -> bool:
    """Whether Spark runs embedded, in a child of this process."""
    return master.startswith("local")


def is_connect(master: str) -> bool:
    """Whether Spark's driver runs in a Spark Connect server, which has its own settings."""
    return master.startswith("sc:")


def is_remote(spark: SparkSession) -> bool:
    """Whether the session uses Spark Connect, so its driver runs in another process."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def parallelism(spark: SparkSession) -> int:
    """How many tasks the session's executors run concurrently; 1 if that is unknown."""
    return known_parallelism(spark) or 1


def known_parallelism(spark: SparkSession) -> int | None:
    """The session's default parallelism; None with Spark Connect, unless it is configured there.

    On a cluster, the first call waits until the executors have registered (``executors``).
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
    """Open a session: embedded, on ``master``, or by Spark Connect at ``remote``."""
    if master and remote:
        raise ConfigError("give a Spark master or a Spark Connect server, not both")
    SparkSession = _import_spark()  # noqa: N806 - it is a class
    where = remote or master or EMBEDDED
    settings = plan_settings(where, conf or {})
    rank = priority.check_word(settings.get(priority.SETTING, priority.NORMAL))
    if is_local(where):
        priority.yield_cores(rank)  # before Java starts, so that Java inherits it
    builder = SparkSession.builder.appName(app)
    if remote:
        check_remote(remote)
        builder = builder.remote(remote)
    else:
        _set_environment(embedded=is_local(where))
        builder = builder.master(master or EMBEDDED)
    for name, value in settings.items():
        builder = builder.config(name, value)
    with on_search_path():  # inherited by Java and by the workers it starts on this machine
        return builder.getOrCreate()


def check_remote(remote: str) -> None:
    """Fail at once if no server answers; Spark's client would retry silently for ten minutes."""
    if importlib.util.find_spec("grpc") is None:
        raise ConfigError(f"Spark Connect needs grpcio: run `{install_command('connect')}`")
    url = urlsplit(remote)
    try:
        port = url.port or CONNECT_PORT
    except ValueError:
        port = 0
    if url.scheme != "sc" or not url.hostname or not port:
        raise ConfigError(f"the address of a Spark Connect server is sc://host:port, not {remote}")
    try:
        socket.create_connection((url.hostname, port), REACH_S).close()
    except OSError as error:
        why = error.strerror or error
        raise UnavailableError(
            f"no Spark Connect server replies at {url.hostname}:{port} ({why}); start one with "
            "Spark's sbin/start-connect-server.sh, or give another address"
        ) from None


def _import_spark() -> type[SparkSession]:
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise ConfigError(f"Spark is not installed: run `{install_command('spark')}`") from None
    return cast("type[SparkSession]", SparkSession)


def _set_environment(*, embedded: bool) -> None:
    """Set the variables that Spark reads before it starts Java and its Python workers.

    An embedded Spark runs this Python. On a cluster the user's choice for the executors stands.
    """
    os.environ["JAVA_HOME"] = str(java_home())
    if embedded or not any(os.environ.get(name) for name in VARIABLES):
        os.environ |= dict.fromkeys(VARIABLES, sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
