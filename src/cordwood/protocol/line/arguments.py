"""The arguments of control commands: how words become values, and values words.

Words that do not parse raise ``Misuse``, to which ``parse_command`` adds the command's usage, or
``InvalidTopic``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple

from cordwood.errors import InvalidTopic
from cordwood.model import TopicPartition, is_topic_name

SEQ_MAX: Final = 2**63 - 1
PARTITION_DIGITS_MAX: Final = 9
READER_BYTES_MAX: Final = 249
MANY: Final = 2**31  # words; more than a message can have

Target = str | TopicPartition  # a whole topic, or one partition of it: ``<topic>[:<partition>]``


class StartPosition(Enum):
    """A position in a log that needs no number."""

    START = "START"  # the oldest record that still exists
    END = "END"  # after the newest record
    CURSOR = "CURSOR"  # the cursor of the named reader; without a name, the end


class Misuse(Exception):
    """The arguments of a command are wrong; ``parse_command`` adds the usage."""


class Argument(NamedTuple):
    """An argument of commands: how many words it takes, and how they become a value and back."""

    usage: str
    words_min: int
    words_max: int
    parse: Callable[[list[str]], object]  # takes its words from the front
    encode: Callable[[Any], Sequence[object]]


def shown(word: bytes | str) -> str:
    """Quote a word from a peer in a reply: shortened, and always ASCII."""
    raw = word if isinstance(word, bytes) else word.encode("utf-8", "surrogateescape")
    return "".join(chr(b) if 0x20 < b < 0x7F else f"\\x{b:02x}" for b in raw[:64])


def parse_target(word: str) -> Target:
    """Parse ``<topic>`` or ``<topic>:<partition>``; a topic's name has no colon."""
    topic, colon, number = word.partition(":")
    if not colon:
        return _topic(topic)
    if not (number.isascii() and number.isdigit() and len(number) <= PARTITION_DIGITS_MAX):
        raise Misuse(f"'{shown(number)}' is not a partition, a whole number from 0")
    return TopicPartition(_topic(topic), int(number))


def encode_target(target: Target) -> str:
    """The inverse of ``parse_target``."""
    return f"{target.topic}:{target.partition}" if isinstance(target, TopicPartition) else target


def _topic(word: str) -> str:
    if not is_topic_name(word):
        raise InvalidTopic(
            f"'{shown(word)}' is not a valid topic name; use 1 to 249 characters of A-Z a-z 0-9 "
            ". _ - (not . or ..)"
        )
    return word


def _reader(word: str) -> str:
    if not word.isprintable() or len(word.encode("utf-8", "replace")) > READER_BYTES_MAX:
        raise Misuse(
            f"a reader's name is printable UTF-8 without spaces, up to {READER_BYTES_MAX} bytes"
        )
    return word


def _seq(word: str, low: int = 1) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= 19 and low <= int(word) <= SEQ_MAX):
        raise Misuse(f"'{shown(word)}' is not a seq, a whole number from {low}")
    return int(word)


def _position(word: str) -> int | StartPosition:
    return StartPosition(word.upper()) if word.upper() in {"START", "END"} else _seq(word)


def _start(words: list[str]) -> int | StartPosition:
    """``FROM_START``, ``FROM <seq>`` or nothing."""
    first = words[0].upper() if words else ""
    if first not in {"FROM_START", "FROM"}:
        return StartPosition.CURSOR
    del words[0]
    if first == "FROM_START":
        return StartPosition.START
    if not words:
        raise Misuse("FROM needs a seq")
    return _seq(words.pop(0))


def _encode_start(start: int | StartPosition) -> Sequence[object]:
    if isinstance(start, int):
        return ("FROM", start)
    return ("FROM_START",) if start is StartPosition.START else ()


def _as_reader(words: list[str]) -> str | None:
    """``AS <reader>`` or nothing; always the last argument."""
    if not words:
        return None
    if len(words) != 2 or words[0].upper() != "AS":
        raise Misuse("after the topic, only AS and a reader's name are allowed")
    return _reader(words[1])


def _settings(words: list[str]) -> tuple[tuple[str, str], ...]:
    """``<name>=<value>`` once or more; always the last argument."""
    settings = []
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise Misuse(f"'{shown(word)}' is not a setting, <name>=<value>")
        settings.append((name, value))
    return tuple(settings)


def _quotes(words: list[str]) -> bool:
    """``quotes strip`` or ``quotes keep``; always the last argument."""
    name, value = (word.lower() for word in words)
    if name != "quotes":
        raise Misuse(f"'{shown(words[0])}' is not a setting of the connection")
    if value not in {"keep", "strip"}:
        raise Misuse(f"quotes is keep or strip, not '{shown(words[1])}'")
    return value == "strip"


def _same(value: object) -> object:
    return value.value if isinstance(value, StartPosition) else value


def _word(
    usage: str, parse: Callable[[str], object], encode: Callable[[Any], object] = _same
) -> Argument:
    return Argument(usage, 1, 1, lambda words: parse(words.pop(0)), lambda value: (encode(value),))


def _optional(word: Argument) -> Argument:
    return Argument(
        f"[{word.usage}]",
        0,
        1,
        lambda words: word.parse(words) if words else None,
        lambda value: () if value is None else word.encode(value),
    )


TOPIC: Final = _word("<topic>", _topic)
OPTIONAL_TOPIC: Final = _optional(TOPIC)
TARGET: Final = _word("<topic>[:<partition>]", parse_target, encode_target)
OPTIONAL_TARGET: Final = _optional(TARGET)
READER: Final = _word("<reader>", _reader)
AS_READER: Final = Argument(
    "[AS <reader>]", 0, 2, _as_reader, lambda reader: () if reader is None else ("AS", reader)
)
SEQ: Final = _word("<seq>", _seq)
ACKED_SEQ: Final = _word("<seq>", partial(_seq, low=0))
POSITION: Final = _word("<seq> | START | END", _position)
START: Final = Argument("[FROM_START | FROM <seq>]", 0, 2, _start, _encode_start)
SETTINGS: Final = Argument(
    "<name>=<value> ...",
    1,
    MANY,
    _settings,
    lambda settings: [f"{name}={value}" for name, value in settings],
)
QUOTES: Final = Argument(
    "quotes keep | strip",
    2,
    2,
    _quotes,
    lambda strips_quotes: ("quotes", "strip" if strips_quotes else "keep"),
)
PAYLOAD: Final = Argument("<payload>", 1, MANY, lambda _: b"", lambda _: ())  # see ``_parse_put``
