"""The source text of a generated function, which the encoder and the decoder write line by line."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cordwood.protocol.kafka.layout import Field
from cordwood.protocol.kafka.primitives import WireType


class GeneratedSource(ABC):
    """Collects the lines of one function and the objects they refer to.

    Adjacent fixed-width values wait in ``_pending`` until ``_flush`` writes one line for all.
    """

    def __init__(self, version: int, *, flexible: bool, names: dict[str, Any]) -> None:
        self.names = names
        self._version = version
        self._flexible = flexible
        self._lines: list[str] = []
        self._depth = 1
        self._pending: list[tuple[str, str]] = []  # struct code; variable or expression
        self._count = 0

    @abstractmethod
    def _flush(self) -> None:
        """Write the pending values."""

    def _function(self, head: str) -> str:
        return head + "\n" + "\n".join(self._lines) + "\n"

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def _block(self, head: str) -> Iterator[None]:
        self._line(head)
        self._depth += 1
        yield
        self._flush()
        self._depth -= 1

    def _name(self, stem: str) -> str:
        self._count += 1
        return f"{stem}_{self._count}"

    def _constant(self, value: Any) -> str:
        if value is None or value == () or isinstance(value, (bool, int, str, bytes)):
            return repr(value)
        name = f"DEFAULT_{len(self.names)}"
        self.names[name] = value
        return name


def item_field(kind: WireType) -> Field:
    """Describe the string or bytes item of an array as a field."""
    return Field("item", kind, False, False, 0, 0, 0, None, None)
