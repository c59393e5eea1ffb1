"""kio as an oracle for Kafka bytes: random messages of its classes, encoded by it.

kio generates every field of every version from Kafka's message definitions, so a field that we
forgot, misplaced or mistyped makes the bytes differ.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import io
import random
import string
import types
import typing
import uuid

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

NEWER_THAN_KIO = {18: 4}  # API → the last version of which kio knows the messages
INT_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
LETTERS = string.ascii_letters + "._-äß€😀"
LENGTHS = (0, 1, 2, 3, 5, 16, 130)  # 130: a varint of two bytes
COUNTS = (0, 1, 1, 2, 3)
MANY = 140


def kio_class(api_key: int, version: int, direction: str) -> type:
    """Return kio's class for a request or response."""
    load = load_request_schema if direction == "request" else load_response_schema
    return load(api_key, version)


def kio_versions(api) -> range:
    """Return the served versions of an API that kio has too."""
    last = NEWER_THAN_KIO.get(api.key, api.last_version)
    return range(api.first_version, last + 1)


def random_entity(entity: type, rng: random.Random) -> object:
    """Return a kio message with random fields, including tagged ones."""
    hints = _hints_of(entity)
    values = {
        field.name: _draw(hints[field.name], field.metadata.get("kafka_type"), rng)
        for field in dataclasses.fields(entity)
        if field.metadata.get("tag") is None or rng.random() < 0.5
    }
    return entity(**values)


@functools.cache
def _hints_of(entity: type) -> dict[str, typing.Any]:
    return typing.get_type_hints(entity)


def kio_bytes(message: object) -> bytes:
    """Encode the message with kio."""
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


def kio_reads(entity: type, data: bytes) -> object:
    """Decode the message with kio; it must consume every byte."""
    message, size = entity_reader(entity)(data, 0)
    assert size == len(data)
    return message


def _draw(hint: object, kafka_type: str | None, rng: random.Random) -> object:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        if rng.random() < 0.3:
            return None
        (hint,) = (argument for argument in arguments if argument is not types.NoneType)
        return _draw(hint, kafka_type, rng)
    if typing.get_origin(hint) is tuple:
        count = MANY if rng.random() < 0.01 else rng.choice(COUNTS)
        return tuple(_draw(arguments[0], kafka_type, rng) for _ in range(count))
    if dataclasses.is_dataclass(hint):
        return random_entity(hint, rng)
    return _draw_primitive(kafka_type, rng)


def _draw_primitive(kafka_type: str | None, rng: random.Random) -> object:
    if kafka_type in INT_BITS:
        top = 2 ** (INT_BITS[kafka_type] - 1)
        return rng.choice((0, 1, -1, top - 1, -top, rng.randrange(-top, top)))
    if kafka_type == "uint16":
        return rng.randrange(0, 2**16)
    if kafka_type == "string":
        return "".join(rng.choices(LETTERS, k=rng.choice(LENGTHS)))
    if kafka_type in ("bytes", "records"):
        return rng.randbytes(rng.choice((*LENGTHS, 5000)))
    if kafka_type == "bool":
        return rng.random() < 0.5
    if kafka_type == "error_code":
        return rng.choice(list(ErrorCode))
    if kafka_type == "uuid":
        return uuid.UUID(int=rng.getrandbits(128))
    if kafka_type in ("timedelta_i32", "timedelta_i64"):
        return dt.timedelta(milliseconds=rng.randrange(0, 2**31))
    assert kafka_type == "datetime_i64", kafka_type
    return dt.datetime.fromtimestamp(rng.randrange(0, 2**32), tz=dt.UTC)
