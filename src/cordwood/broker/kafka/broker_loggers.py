"""The loggers of this process as Kafka's BROKER_LOGGER resource: shown and changed at once.

Levels have Kafka's names. A logger without a level of its own shows that of its parent, and a
change lasts until the next start, as in Kafka.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from cordwood.broker.kafka.config_plans import DELETE, SET
from cordwood.broker.kafka.described_settings import TYPES, Source
from cordwood.errors import InvalidConfig, RequestError
from cordwood.protocol.kafka.messages.configs import ConfigChange, DescribedConfig

ROOT: Final = "root"
_PREFIX: Final = "cordwood"
LEVELS: Final = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": 5,  # below every message of ours
}


def described_loggers() -> Iterator[DescribedConfig]:
    """Yield the root logger and those of this package, with the level in effect."""
    for name, logger in _loggers().items():
        level = logger.getEffectiveLevel()
        text = next((known for known, number in LEVELS.items() if level >= number), "TRACE")
        yield DescribedConfig(
            name,
            text,
            config_source=Source.BROKER_LOGGER,
            config_type=TYPES["str"],
            documentation="The log level: FATAL, ERROR, WARN, INFO, DEBUG or TRACE.",
        )


def check_levels(changes: Sequence[ConfigChange]) -> dict[str, int]:
    """Return the level for each logger, NOTSET for its parent's; raises ``RequestError``."""
    known = _loggers()
    return {name: _level(name, operation, value, known) for name, operation, value in changes}


def set_levels(levels: dict[str, int]) -> None:
    """Set the levels, with immediate effect."""
    for name, level in levels.items():
        _loggers()[name].setLevel(level)


def _level(name: str, operation: int, value: str | None, known: dict[str, logging.Logger]) -> int:
    if name not in known:
        raise InvalidConfig(f"there is no logger {name}; the loggers are {', '.join(known)}")
    if operation == DELETE:
        if name == ROOT:
            raise RequestError("the root logger needs a level; set one instead of deleting it")
        return logging.NOTSET
    if operation != SET:
        raise RequestError(f"{name}: a log level can only be set or deleted")
    level = LEVELS.get((value or "").upper())
    if level is None:
        raise InvalidConfig(f"{name}: {value!r} is not one of {', '.join(LEVELS)}")
    return level


def _loggers() -> dict[str, logging.Logger]:
    """Return the loggers by name; a name that only has children is none."""
    ours = {
        name: logger
        for name, logger in sorted(logging.root.manager.loggerDict.copy().items())
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == _PREFIX
    }
    return {ROOT: logging.getLogger(), _PREFIX: logging.getLogger(_PREFIX), **ours}
