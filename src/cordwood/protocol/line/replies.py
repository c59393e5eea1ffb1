"""Replies: one message each, encoded by the server and parsed by the client.

The results have no delimiter; a connection's ``encode`` adds the framing that its peer uses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

from cordwood.errors import CordwoodError, ProtocolError, error_classes
from cordwood.protocol.line.framing import Framing
from cordwood.protocol.line.records import encode_payload, parse_payload

OK: Final = b"OK"
EMPTY: Final = b"EMPTY"

_ERROR_CHARACTERS_MAX: Final = 1000


class Welcome(NamedTuple):
    """The answer to HELLO: the producer's name and epoch, and its last durable n."""

    producer: str
    epoch: int
    last_n: int


def encode_ack(number: int) -> bytes:
    """``ACK <seq>`` answers a query, ``ACK <n>`` a producer: everything up to it is durable."""
    return b"ACK %d" % number


def encode_acks(numbers: Sequence[int]) -> bytes:
    """``ACK <partition>:<seq> ...``: the last durable seq of every partition, in their order."""
    pairs = (b"%d:%d" % (partition, seq) for partition, seq in enumerate(numbers))
    return b"ACK " + b" ".join(pairs)


def encode_welcome(welcome: Welcome) -> bytes:
    """``OK <producer> <epoch> <last n durable>``."""
    return f"OK {welcome.producer} {welcome.epoch} {welcome.last_n}".encode()


def encode_count(count: int) -> bytes:
    """``OK <count>``."""
    return b"OK %d" % count


def encode_got(payload: bytes | None, framing: Framing) -> bytes:
    """``OK <payload>``, escaped like records in text; a null payload in a frame is a bare OK."""
    if payload is None and framing is Framing.FRAMES:
        return OK
    return b"OK " + encode_payload(payload, framing)


def encode_json(value: Mapping[str, object]) -> bytes:
    """Encode a JSON object on one line."""
    return json.dumps(value, separators=(",", ":")).encode()


def encode_error(error: CordwoodError) -> bytes:
    """``ERR <CODE> <what happened, and what to do>``, always on one line."""
    text = " ".join(str(error).split())[:_ERROR_CHARACTERS_MAX]
    return f"ERR {error.name} {text}".rstrip().encode("utf-8", "backslashreplace")


def check_reply(body: bytes) -> bytes:
    """Return the reply; an ``ERR`` is raised as the error class it names."""
    if body == b"ERR" or body.startswith(b"ERR "):
        raise parse_error(body)
    return body


def parse_error(body: bytes) -> CordwoodError:
    """Return the error of an ``ERR`` line; an unknown code is quoted in a ``CordwoodError``."""
    _, name, text = [*body.decode("utf-8", "replace").split(" ", 2), "", ""][:3]
    kind = _errors_by_name().get(name)
    return kind(text) if kind else CordwoodError(f"{name} {text}".strip())


def parse_ack(body: bytes) -> int:
    """Return the number in ``ACK <number>``; raise the error in an ``ERR`` or ``ProtocolError``."""
    return _number(check_reply(body), b"ACK")


def parse_acks(body: bytes) -> dict[int, int]:
    """Return the seq of each partition from an answer to ``GET_ACK``; raises as ``parse_ack``."""
    if b":" not in check_reply(body):
        return {0: parse_ack(body)}
    word, *pairs = body.split()
    acks = [pair.partition(b":") for pair in pairs]
    if word != b"ACK" or not all(left.isdigit() and right.isdigit() for left, _, right in acks):
        raise ProtocolError(f"ACK and partition:seq pairs were expected, not {body[:80]!r}")
    return {int(left): int(right) for left, _, right in acks}


def parse_count(body: bytes) -> int:
    """Return the number in ``OK <count>``."""
    return _number(check_reply(body), b"OK")


def parse_welcome(body: bytes) -> Welcome:
    """Parse the answer to HELLO; raise the error in an ``ERR`` or ``ProtocolError``."""
    words = check_reply(body).split(b" ")
    if len(words) != 4 or words[0] != OK or not (words[2].isdigit() and words[3].isdigit()):
        raise ProtocolError(
            f"the reply to HELLO must be OK <producer> <epoch> <n>, not {body[:80]!r}"
        )
    return Welcome(words[1].decode("utf-8", "replace"), int(words[2]), int(words[3]))


def parse_got(body: bytes, framing: Framing) -> bytes | None:
    """The payload in ``OK <payload>``; raise the error in an ``ERR`` or ``ProtocolError``."""
    if check_reply(body) == OK and framing is Framing.FRAMES:
        return None
    if not body.startswith(b"OK "):
        raise ProtocolError(f"the reply to GET must be OK <payload> or EMPTY, not {body[:80]!r}")
    return parse_payload(body[3:], framing)


def parse_json(body: bytes) -> dict[str, object]:
    """Parse a JSON object; raise the error in an ``ERR`` or ``ProtocolError``."""
    try:
        value = json.loads(check_reply(body))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ProtocolError(f"a JSON object was expected, not {body[:80]!r}")
    return value


def parse_ok(body: bytes) -> None:
    """Check that the reply is ``OK``; raise the error in an ``ERR`` or ``ProtocolError``."""
    if check_reply(body) != OK:
        raise ProtocolError(f"OK was expected, not {body[:80]!r}")


def _number(body: bytes, word: bytes) -> int:
    first, _, number = body.partition(b" ")
    if first != word or not number.isdigit() or len(number) > 19:
        raise ProtocolError(f"{word.decode()} and a number were expected, not {body[:80]!r}")
    return int(number)


@cache
def _errors_by_name() -> dict[str, type[CordwoodError]]:
    """Map code words to classes; no two classes in ``errors`` share a word."""
    kinds: list[type[CordwoodError]] = [CordwoodError, *error_classes()]
    return {kind.name: kind for kind in kinds}
