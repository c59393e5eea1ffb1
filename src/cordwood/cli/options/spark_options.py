"""Options and context of every command that runs on Spark: the session and the broker."""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cordwood.cli.options.arguments import parse_settings
from cordwood.cli.options.tls import BrokerTarget
from cordwood.cli.output.progress import progress
from cordwood.errors import CordwoodError, UnavailableError

if TYPE_CHECKING:
    from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi

RESTART_S = 10  # a restarting broker is back by then
ENDING_S = 10  # a Java process that closed its connection has exited by then

MasterOption = Annotated[
    str | None,
    typer.Option(
        help="A Spark master such as spark://host:7077. [default: Spark runs in this process]",
        metavar="URL",
        envvar="CORDWOOD_MASTER",
    ),
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        help="A Spark setting; repeat for more.",
        metavar="NAME=VALUE",
        envvar="CORDWOOD_SPARK_CONF",
    ),
]


def job_address(broker: BrokerTarget, master: str | None) -> BrokerAddress:
    """Return the broker's address for jobs on a Spark master, or embedded.

    On a cluster, certificates and keys travel as text: its machines may not have the files. On this
    machine they stay in the files, which are read again when they change.
    """
    from cordwood.pipeline.runtime.broker_api import BrokerAddress
    from cordwood.pipeline.runtime.session import is_local

    tls = broker.tls
    if tls is not None and master is not None and not is_local(master):
        tls = tls.inlined()
    return BrokerAddress(broker.address, tls=tls)


@contextmanager
def broker_context(
    broker: BrokerTarget, *, master: str | None = None, answer_s: float = 60
) -> Iterator[BrokerApi]:
    """Connect to the JSON API. The broker must be up now; later, restarts are waited for."""
    from contextlib import closing

    from cordwood.cli.options.connect import listener_address
    from cordwood.pipeline.runtime.broker_api import BrokerApi

    listener_address(broker, "http")
    where = job_address(broker, master)
    with closing(BrokerApi(where, timeout_s=RESTART_S, answer_s=answer_s)) as api:
        yield api


@contextmanager
def _hushed() -> Iterator[None]:
    """Hide Java's start-up messages on stderr; show them only if the start fails."""
    with tempfile.TemporaryFile() as output:
        stderr = os.dup(2)
        sys.stderr.flush()
        os.dup2(output.fileno(), 2)
        try:
            yield
        except BaseException:
            output.seek(0)
            os.write(stderr, output.read()[-4096:])
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


@contextmanager
def ungreeted() -> Iterator[None]:
    """Like ``_hushed``, but forward Java's stderr after the start, for as long as Java lives.

    Java keeps the stderr it was started with: a pipe that is read here until it closes.
    """
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    stderr = os.dup(2)
    greeting, lock, started = bytearray(), threading.Lock(), threading.Event()

    def hear() -> bool:
        """Read what has arrived; return False when the pipe is closed."""
        try:
            while output := os.read(reading, 1 << 16):
                if started.is_set():
                    os.write(stderr, output)
                else:
                    greeting.extend(output)
        except BlockingIOError:
            return True
        return False

    def follow() -> None:
        waiting = select.poll()  # not select: it fails for descriptors above 1023
        waiting.register(reading, select.POLLIN)
        is_open = True
        while is_open:
            waiting.poll()
            with lock:
                is_open = hear()
        started.wait()
        os.close(reading)
        os.close(stderr)

    def end_greeting() -> None:
        os.dup2(stderr, 2)
        with lock:
            hear()
            started.set()

    sys.stderr.flush()
    os.dup2(writing, 2)
    os.close(writing)
    threading.Thread(target=follow, name="java-stderr", daemon=True).start()
    try:
        yield
    except BaseException:
        end_greeting()
        os.write(2, greeting[-4096:])
        raise
    end_greeting()


@contextmanager
def spark_session(app: str, master: str | None, conf: Sequence[str] | None) -> Iterator[Any]:
    """Open a session for one command; Ctrl-C cancels its jobs, and a failed job is one sentence.

    A user waits for it, so it runs at normal priority unless ``conf`` says otherwise.
    """
    from cordwood.pipeline.runtime import priority
    from cordwood.pipeline.runtime.failure_reasons import sentence
    from cordwood.pipeline.runtime.job_labels import OURS
    from cordwood.pipeline.runtime.session import open_session

    _keep_spark_quiet()
    settings = {priority.SETTING: priority.NORMAL, **parse_settings(conf or [])}
    with progress("starting Spark"), _hushed():
        spark = open_session(f"cordwood {app}", master=master, conf=settings)
    spark.sparkContext.setJobGroup(OURS, f"cordwood {app}")  # the group of its jobs in Spark's UI
    # Spark's own handler calls Java while another call is still waiting for its answer.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield spark
    except KeyboardInterrupt:
        cancel_jobs(spark)
        raise
    except (CordwoodError, BrokenPipeError):
        raise
    except Exception as error:  # noqa: BLE001 - turned into a sentence, or raised as it is
        if isinstance(error.__context__, KeyboardInterrupt):  # Ctrl-C, then a failed cleanup
            cancel_jobs(spark)
            raise KeyboardInterrupt from None
        if _has_ended(spark):
            raise UnavailableError(
                "Spark's Java process ended unexpectedly, most likely out of memory; give it "
                "more with --conf spark.driver.memory=4g"
            ) from None
        raise sentence(error) from None
    finally:
        _elsewhere(spark.stop)


def cancel_jobs(spark: Any) -> None:
    """Cancel all jobs of the session, even after a Ctrl-C that interrupted a call to Java."""
    _elsewhere(spark.sparkContext.cancelAllJobs)


def _elsewhere(ask: Callable[[], None]) -> None:
    """Call Java from another thread: an interrupted one would read a stale answer."""

    def act() -> None:
        with suppress(Exception):  # a Java process that has exited has nothing to stop
            ask()

    asker = threading.Thread(target=act, name="spark-end", daemon=True)
    asker.start()
    asker.join()


def _has_ended(spark: Any) -> bool:
    """Whether the Java process that we started has exited; it may be about to exit."""
    java = getattr(spark.sparkContext._gateway, "proc", None)  # noqa: SLF001 - no public API
    with suppress(subprocess.TimeoutExpired):
        return java is not None and java.wait(ENDING_S) is not None
    return False


def _keep_spark_quiet() -> None:
    """Report errors once, by us: silence Spark's loggers and records logged to the root logger."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    ours = logging.StreamHandler()
    ours.addFilter(lambda record: record.name != "root")
    logging.getLogger().addHandler(ours)
