"""Generates the source of an encoder: packed runs of bytes for one message and version.

The encoder appends small pieces to ``parts``. Records above ``COPY_BYTES_MAX`` are never copied:
the parts collected so far are joined into ``chunks``, and the records follow as a chunk of their
own, so a Fetch response is a list of buffers for ``writelines`` or ``sendmsg``.

In versions where a field cannot be null, a null is written as empty, as Kafka's own broker does by
hand for the few fields that became nullable later. Any other value of the wrong type or size is a
bug of ours and raises what ``struct`` raises.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

from cordwood.protocol.kafka.generated_source import GeneratedSource, item_field
from cordwood.protocol.kafka.layout import Field, MessageType, fields_of
from cordwood.protocol.kafka.primitives import SMALL_VARINTS, WireType, encode_uvarint, number_array

COPY_BYTES_MAX: Final = 2048
"""Records up to this size are cheaper to copy into their neighbours than to send apart."""


class EncoderSource(GeneratedSource):
    """Writes the source of one encoder."""

    function: Final = "encode"

    def __init__(self, version: int, *, flexible: bool) -> None:
        names: dict[str, Any] = {
            "uvarint": encode_uvarint,
            "SMALL": SMALL_VARINTS,
            "numbers": number_array,
            "join": b"".join,
        }
        super().__init__(version, flexible=flexible, names=names)
        self._add = "add"

    def write(self, message_type: MessageType) -> str:
        """Return the source of ``encode(message, chunks, parts)``."""
        self._line("add = parts.append")
        self._struct(message_type, "message")
        self._flush()
        return self._function("def encode(message, chunks, parts):")

    # --- fixed-width writes, combined

    def _put(self, code: str, expression: str = "") -> None:
        self._pending.append((code, expression))

    def _packed(self, *more: tuple[str, str]) -> str:
        """Return the expression that packs the pending values and ``more``."""
        items = [*self._pending, *more]
        codes = "".join(code for code, _ in items)
        values = ", ".join(expression for _, expression in items if expression)
        if not values:
            return repr(bytes(len(codes)))
        name = "pack_" + codes.replace("?", "t")
        self.names[name] = Struct(">" + codes).pack
        return f"{name}({values})"

    def _flush(self) -> None:
        if self._pending:
            self._line(f"{self._add}({self._packed()})")
            self._pending.clear()

    def _put_length(self, size: str, code: str) -> None:
        """Write a length after the pending values; in flexible versions it is a varint."""
        if not self._flexible:
            self._put(code, size)
            self._flush()
        elif not self._pending:
            self._line(f"{self._add}(SMALL[{size}] if {size} < 128 else uvarint({size}))")
        else:
            self._line(f"if {size} < 128: {self._add}({self._packed(('B', size))})")
            self._line(f"else: {self._add}({self._packed()}); {self._add}(uvarint({size}))")
            self._pending.clear()

    # --- fields

    def _struct(self, message_type: MessageType, value: str) -> None:
        targets: list[str] = []
        present: list[tuple[Field, str]] = []
        for field in fields_of(message_type):
            if field.is_in(self._version):
                present.append((field, self._name(field.name)))
                targets.append(present[-1][1])
            else:
                targets.append("_")
        if targets:
            self._line(f"{', '.join(targets)}{',' if len(targets) == 1 else ''} = {value}")
        for field, variable in present:
            if field.tag is None:
                self._field(field, variable)
        if self._flexible:
            self._tags([(field, name) for field, name in present if field.tag is not None])

    def _field(self, field: Field, variable: str) -> None:
        element = field.element
        if field.is_array:
            self._array(field, variable)
        elif isinstance(element, WireType):
            if element.is_fixed:
                self._put(
                    element.value, f"{variable}.bytes" if element is WireType.UUID else variable
                )
            else:
                self._sized(field, element, variable)
        elif field.is_optional:
            self._flush()
            with self._block(f"if {variable} is None:"):
                self._line(f'{self._add}(b"\\xff")')
            with self._block("else:"):
                self._line(f'{self._add}(b"\\x01")')
                self._struct(element, variable)
        else:
            self._struct(element, variable)

    def _measure(self, field: Field, variable: str, empty: str) -> str:
        """Emit the length to write and return its name; null becomes empty with the null length."""
        size = self._name("n")
        written = f"len({variable})" + (" + 1" if self._flexible else "")
        null = "0" if self._flexible else "-1"
        if field.is_nullable(self._version):
            self._line(f"if {variable} is None: {size} = {null}; {variable} = {empty}")
            self._line(f"else: {size} = {written}")
        else:
            if field.is_optional:
                self._line(f"if {variable} is None: {variable} = {empty}")
            self._line(f"{size} = {written}")
        return size

    def _sized(self, field: Field, kind: WireType, variable: str) -> None:
        if field.is_nullable(self._version) and not self._pending:
            null = (
                SMALL_VARINTS[0]
                if self._flexible
                else b"\xff" * (2 if kind is WireType.STRING else 4)
            )
            self._line(f"if {variable} is None: {self._add}({null!r})")
            with self._block("else:"):
                self._sized(field._replace(is_optional=False), kind, variable)
            return
        if kind is WireType.STRING:
            guard = f" if {variable} is not None else None" if field.is_optional else ""
            raw = self._name("raw")
            self._line(f"{raw} = {variable}.encode(){guard}")
            variable = raw
        size = self._measure(field, variable, 'b""')
        self._put_length(size, "h" if kind is WireType.STRING else "i")
        if kind is not WireType.RECORDS:
            self._line(f"{self._add}({variable})")
            return
        assert self._add == "add", "records cannot lie in a tagged field"
        self._line(f"if len({variable}) <= {COPY_BYTES_MAX}: add({variable})")
        self._line(f"else: chunks += (join(parts), {variable}); parts.clear()")

    def _array(self, field: Field, variable: str) -> None:
        element = field.element
        size = self._measure(field, variable, "()")
        self._put_length(size, "i")
        item = self._name("item")
        if isinstance(element, WireType) and element.is_fixed:
            self._line(
                f"if {variable}: "
                f"{self._add}(numbers({element.value!r}, len({variable})).pack(*{variable}))"
            )
            return
        with self._block(f"for {item} in {variable}:"):
            if isinstance(element, WireType):
                self._sized(item_field(element), element, item)
            else:
                self._struct(element, item)

    # --- tag sections

    def _tags(self, tagged: list[tuple[Field, str]]) -> None:
        """Write the tag section; it is one zero byte if all tagged fields have their defaults."""
        if not tagged:
            self._put("x")
            return
        changed = [self._is_changed(field, variable) for field, variable in tagged]
        pending = bool(self._pending)
        with_zero, without = self._packed(("x", "")), self._packed() if pending else ""
        self._pending.clear()
        with self._block(f"if {' or '.join(changed)}:"):
            if pending:
                self._line(f"{self._add}({without})")
            count = " + ".join(f"bool({test})" for test in changed)
            self._line(f"{self._add}(uvarint({count}))")
            for (field, variable), test in zip(tagged, changed, strict=True):
                self._tagged_field(field, variable, test)
        self._line(f"else: {self._add}({with_zero})")

    def _is_changed(self, field: Field, variable: str) -> str:
        if field.is_array:
            return variable
        if field.default is None:
            return f"{variable} is not None"
        default = self._constant(field.default)
        if isinstance(field.element, WireType):
            return f"{variable} != {default}"
        return f"({variable} is not {default} and {variable} != {default})"

    def _tagged_field(self, field: Field, variable: str, test: str) -> None:
        outer, body = self._add, self._name("body")
        with self._block(f"if {test}:"):
            self._line(f"{body} = []; add_{body} = {body}.append")
            self._add = f"add_{body}"
            self._field(field, variable)
            self._flush()
            self._add = outer
            self._line(f"{body} = join({body})")
            self._line(f"{outer}(uvarint({field.tag}) + uvarint(len({body})) + {body})")
