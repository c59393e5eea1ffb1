"""What every command that runs on Spark shares: where Spark runs, and which broker it talks to."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from cordwood.cli.output import parse_settings
from cordwood.cli.progress import progress

if TYPE_CHECKING:
    from cordwood.pipeline.broker import BrokerApi, Where

MasterOption = Annotated[
    str | None,
    typer.Option(
        help="A Spark master such as spark://host:7077; without it Spark runs in here.",
        metavar="URL",
        envvar="CORDWOOD_MASTER",
    ),
]
ConfOption = Annotated[
    list[str] | None, typer.Option("--conf", help="A Spark setting, name=value; repeat for more.")
]


class Desk(NamedTuple):
    """A broker to ask, and how it is found."""

    api: BrokerApi
    where: Where


@contextmanager
def broker_desk(broker: str) -> Iterator[Desk]:
    """The broker's JSON API, waiting a moment for a broker that restarts."""
    from contextlib import closing

    from cordwood.pipeline.broker import BrokerApi, Where

    where = Where(broker)
    with closing(BrokerApi(where, timeout_s=10)) as api:
        yield Desk(api, where)


@contextmanager
def _hushed() -> Iterator[None]:
    """Java greets on stderr; what it says is shown only when it does not start."""
    with tempfile.TemporaryFile() as said:
        stderr = os.dup(2)
        sys.stderr.flush()
        os.dup2(said.fileno(), 2)
        try:
            yield
        except BaseException:
            said.seek(0)
            os.write(stderr, said.read()[-4096:])
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


@contextmanager
def spark_session(app: str, master: str | None, conf: Sequence[str] | None) -> Iterator[Any]:
    """A session for one command; Ctrl-C cancels its jobs."""
    from cordwood.pipeline.session import open_session

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # errors are said once, by us
    with progress("starting Spark"), _hushed():
        spark = open_session(f"cordwood {app}", master=master, conf=parse_settings(conf or []))
    try:
        yield spark
    except KeyboardInterrupt:
        spark.sparkContext.cancelAllJobs()
        raise
    finally:
        spark.stop()
