"""Decodes and encodes messages with functions compiled on first use per message and version.

``decode`` never returns part of a message and raises only ``ProtocolError`` for bytes from a peer.
Like Kafka, it skips unknown tagged fields and bytes after the message. ``encode`` expects valid
values: a wrong one is a bug of ours. ``explain`` returns the generated source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from cordwood.errors import BadMessage
from cordwood.protocol.kafka.decoding import DecoderSource
from cordwood.protocol.kafka.encoding import EncoderSource
from cordwood.protocol.kafka.layout import MessageType
from cordwood.protocol.kafka.primitives import DECODE_FAULTS, Buffer
from cordwood.protocol.kafka.schema import API_BY_KEY, api_of

Message = TypeVar("Message", bound=tuple[Any, ...])
Decoder = Callable[[memoryview, int, int, int], tuple[Any, int]]
Encoder = Callable[[Any, list[Buffer], list[Buffer]], None]

ANY_ELEMENTS: Final = 2**31
_DECODERS: Final[dict[tuple[type[Any], int], Decoder]] = {}
_ENCODERS: Final[dict[tuple[type[Any], int], Encoder]] = {}


def decode(
    message_type: type[Message], version: int, data: Buffer, elements_max: int = ANY_ELEMENTS
) -> Message:
    """Decode a complete message; its record bytes are views of ``data``, not copies.

    ``elements_max`` limits the elements of all its arrays together. A larger message raises
    ``TooManyElements`` before the elements beyond the limit are read.
    """
    decoder = _DECODERS.get((message_type, version)) or _compile(
        DecoderSource, _DECODERS, message_type, version
    )
    view = data if type(data) is memoryview else memoryview(data)
    end = len(view)
    try:
        message, position = decoder(view, 0, end, elements_max)
    except DECODE_FAULTS as error:
        raise BadMessage(f"{message_type.__name__} v{version}: {error}") from error
    if position > end:
        raise BadMessage(
            f"{message_type.__name__} v{version}: {position} bytes were expected, but {end} were "
            "sent"
        )
    return message  # type: ignore[no-any-return]


def encode(message: tuple[Any, ...], version: int) -> list[Buffer]:
    """Encode a message as a list of buffers to send in order; large records are not copied."""
    key = (type(message), version)
    encoder = _ENCODERS.get(key) or _compile(EncoderSource, _ENCODERS, *key)
    chunks: list[Buffer] = []
    parts: list[Buffer] = []
    encoder(message, chunks, parts)
    if parts or not chunks:
        chunks.append(b"".join(parts))
    return chunks


def explain(api_key: int, version: int) -> str:
    """Return the source of the four functions that decode and encode this API and version."""
    api = API_BY_KEY[api_key]
    flexible = api.is_flexible(version)
    texts = []
    for message_type in (api.request, api.response):
        texts.append(f"# {message_type.__name__} v{version}")
        texts.append(DecoderSource(version, flexible=flexible).write(message_type))
        texts.append(EncoderSource(version, flexible=flexible).write(message_type))
    return "\n".join(texts)


def _compile(
    source_type: type[DecoderSource | EncoderSource],
    compiled: dict[tuple[MessageType, int], Any],
    message_type: MessageType,
    version: int,
) -> Any:
    """Define the function; its text comes from our tables only, never from input."""
    api = api_of(message_type)
    assert api.is_served(version), (api.name, version)
    source = source_type(version, flexible=api.is_flexible(version))
    label = f"<{source_type.__name__} {message_type.__name__} v{version}>"
    text = source.write(message_type)
    exec(compile(text, label, "exec"), source.names)  # noqa: S102 - source that we generated
    return compiled.setdefault((message_type, version), source.names[source_type.function])
