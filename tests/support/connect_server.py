"""A Spark Connect server of its own, for clients without Java."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cordwood.lab.scenarios.cluster import JAVA, open_daemon

CONNECT_SERVER: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def open_connect_server(work: Path, master: str = "local[2]") -> Iterator[str]:
    """Start a Spark Connect server; yields its ``sc://`` address. Its log goes to ``work``."""
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.defaultJavaOptions": JAVA,
        "spark.python.authenticate.socketTimeout": "10m",
        "spark.ui.enabled": "false",
    }
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    server = ("--class", CONNECT_SERVER, "--master", master, *conf, "spark-internal")
    with open_daemon(work / "connect.log", "SparkSubmit", *server) as daemon:
        yield "sc://" + daemon.wait_for(r"Spark Connect server started at: (\S+)")
