"""ROUTE: decides which topic a record goes to, or why it is dead-lettered.

A binding matches a routing key exactly, or by its prefix up to the first dot; without a binding
that prefix is the topic name. Pure: it only maps keys to topics and never creates a topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from cordwood.model import is_topic_name

ROUTER: Final = "route"  # the reader of the ingress topic whose cursor the router moves


def router_query(ingress_topic: str) -> str:
    """The name under which the router of a topic delivers."""
    return f"{ROUTER}.{ingress_topic}"


class DeadReason(StrEnum):
    """Why a record cannot be routed; a small fixed set, so it can label a counter."""

    NO_KEY = "no_key"
    NOT_TEXT = "not_text"  # the key is not UTF-8
    BAD_TOPIC = "bad_topic"  # the key maps to an invalid topic name
    LOOP = "loop"  # the key maps to the topic being routed
    TOO_LARGE = "too_large"  # the record exceeds the target topic's max.message.bytes
    UNBOUND = "unbound"  # no binding, and the default rule is off


class Routed(NamedTuple):
    """The record goes to this topic."""

    topic: str


class DeadLetter(NamedTuple):
    """The record goes to the dead letter topic; ``detail`` includes the offending value."""

    reason: DeadReason
    detail: str


@dataclass(frozen=True, slots=True)
class Bindings:
    """Routing keys to topics: the exact key first, then its prefix, then the default rule."""

    exact: Mapping[str, str] = field(default_factory=dict)
    prefix: Mapping[str, str] = field(default_factory=dict)
    by_prefix_name: bool = True  # the default rule: the first dotted part names the topic
    source: str | None = None  # the topic being routed; a record never goes back to it


def route(key: bytes | None, bindings: Bindings) -> Routed | DeadLetter:
    """The target of a record with this routing key."""
    if not key:
        return DeadLetter(DeadReason.NO_KEY, "the record has no routing key")
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return DeadLetter(DeadReason.NOT_TEXT, f"routing key {key!r} is not UTF-8")
    topic = _bound(text, bindings)
    if topic is None:
        return DeadLetter(DeadReason.UNBOUND, f"no binding for routing key {text!r}")
    if not is_topic_name(topic):
        detail = f"routing key {text!r} gives {topic!r}, which is not a valid topic name"
        return DeadLetter(DeadReason.BAD_TOPIC, detail)
    if topic == bindings.source:
        detail = f"routing key {text!r} leads back to {topic}, the topic being routed"
        return DeadLetter(DeadReason.LOOP, detail)
    return Routed(topic)


def key_prefix(key: str) -> str:
    """The key up to its first dot; the whole key when it has none."""
    return key.partition(".")[0]


def _bound(key: str, bindings: Bindings) -> str | None:
    prefix = key_prefix(key)
    default = prefix if bindings.by_prefix_name else None
    return bindings.exact.get(key, bindings.prefix.get(prefix, default))
