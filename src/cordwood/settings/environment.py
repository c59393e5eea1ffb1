"""Environment variables: that of each setting, and those that are not settings.

A variable that starts with ``CORDWOOD_`` and that nothing reads is a mistake: a misspelt setting
would be ignored in silence. ``OTHER_VARIABLES`` is the table of those that are not settings; add a
line there for each new one. ``docs/settings.md`` is generated from it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

from cordwood.errors import ConfigError

PREFIX: Final = "CORDWOOD_"
_REMEDY: Final = "unset it, or see docs/settings.md for the names"

OTHER_VARIABLES: Final[Mapping[str, str]] = {
    "CORDWOOD_ARCHIVE": "Where bundles are: `--dest` of the `archive` commands.",
    "CORDWOOD_BROKER": "The broker's Kafka address: `--broker` of every command that connects.",
    "CORDWOOD_TLS": "Connect with TLS: `--tls` and `--no-tls` of every command that connects.",
    "CORDWOOD_TLS_CA": (
        "The CAs to trust: `--tls-ca` of every command that connects. The variables of "
        "`tls.client.cert` and `tls.client.key` are also those of `--tls-cert` and `--tls-key`."
    ),
    "CORDWOOD_TLS_PINNED": "Set by a broker for its embedded pipeline: its own certificate.",
    "CORDWOOD_MASTER": "The Spark master: `--master` of every command that runs on Spark.",
    "CORDWOOD_SPARK_CONF": "Spark settings: `--conf` of every command that runs on Spark.",
    "CORDWOOD_KAFKA_JARS": "The directory of Kafka's jars, for the tests and benchmarks with them.",
    "CORDWOOD_ECOSYSTEM_JARS": "The directory of Kafka's ecosystem, for `examples/cdc` and tests.",
    "CORDWOOD_BENCH_*": "Sizes of the benchmarks in `bench/`.",
    "CORDWOOD_TESTS_*": "Options of the test suite.",
}

# What Kubernetes sets in every container beside a Service whose name starts with cordwood.
_SERVICE_LINK: Final = re.compile(
    r"\w*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)


def environment_name(name: str) -> str:
    """``segment.bytes`` → ``CORDWOOD_SEGMENT_BYTES``."""
    return PREFIX + name.replace(".", "_").upper()


def flag_name(name: str) -> str:
    """``segment.bytes`` → ``--segment-bytes``."""
    return "--" + name.replace(".", "-")


def nearest(name: str, names: Iterable[str]) -> str:
    """A suffix for an error message: the closest known name, or nothing if none is close."""
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def check_variables(environ: Mapping[str, str], settings: Collection[str]) -> None:
    """Raise ``ConfigError`` for a variable of ours that is neither a setting nor in the table."""
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in settings:
            continue
        if _is_other(variable) or _is_service_link(variable, environ[variable]):
            continue
        known = {name.removeprefix(PREFIX): name for name in (*settings, *OTHER_VARIABLES)}
        close = difflib.get_close_matches(variable.removeprefix(PREFIX), known, n=1)
        what_now = f"did you mean {known[close[0]]}?" if close else _REMEDY
        raise ConfigError(f"unknown environment variable {variable}; {what_now}")


def _is_other(variable: str) -> bool:
    return any(fnmatchcase(variable, pattern) for pattern in OTHER_VARIABLES)


def _is_service_link(variable: str, value: str) -> bool:
    if variable.endswith("_PORT") and "://" in value:  # tcp://10.0.0.7:9092
        return True
    return _SERVICE_LINK.fullmatch(variable) is not None
