"""cordwood: a durable message log with Kafka's protocol and plain lines in front, Spark behind.

    import cordwood

    with cordwood.Producer("127.0.0.1:5673") as producer:
        producer.send("orders.new", b"one")

Public are this module, ``cordwood.client`` (blocking, and async in ``cordwood.client.aio``),
``cordwood.testing`` (a broker for your tests), ``cordwood.spark`` (topics as DataFrames) and
``cordwood.errors``; of each, what its ``__all__`` lists. All other packages are internal and change
without notice; ``docs/tour.md`` leads through them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cordwood import client, errors, spark, testing
    from cordwood.client import (
        Client,
        Line,
        Message,
        Producer,
        StartPosition,
        Status,
        StatusWord,
        Subscription,
        Taken,
    )
    from cordwood.codes import Code
    from cordwood.errors import (
        ConfigError,
        CordwoodError,
        CorruptionError,
        ProtocolError,
        RequestError,
        UnavailableError,
    )
    from cordwood.version import __version__

__all__ = [
    "Client",
    "Code",
    "ConfigError",
    "CordwoodError",
    "CorruptionError",
    "Line",
    "Message",
    "Producer",
    "ProtocolError",
    "RequestError",
    "StartPosition",
    "Status",
    "StatusWord",
    "Subscription",
    "Taken",
    "UnavailableError",
    "__version__",
    "client",
    "errors",
    "spark",
    "testing",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``import cordwood`` is cheap."""
    if name not in __all__:
        raise AttributeError(f"module 'cordwood' has no attribute {name!r}")
    if name in {"client", "errors", "spark", "testing"}:
        return import_module(f"cordwood.{name}")
    homes = {"Code": "codes", "__version__": "version"}
    home = homes.get(name, "errors" if name.endswith("Error") else "client")
    return getattr(import_module(f"cordwood.{home}"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
