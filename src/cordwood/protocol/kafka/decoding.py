"""Generates the source of a decoder: a sequence of ``struct`` reads per message and version.

Adjacent fixed-width fields, and the length that follows them, are read in one call. A slice past
the end of a buffer comes out short instead of failing, so string lengths are not checked one by
one: positions only grow, and the caller's single check at the end (``position <= end``) detects
every overrun. Array lengths *are* checked against the remaining bytes, because they size loops.
They also count against the message's limit of elements, before the first element is read.
"""

from __future__ import annotations

from struct import Struct, calcsize
from typing import Any, Final
from uuid import UUID

from cordwood.protocol.kafka.generated_source import GeneratedSource, item_field
from cordwood.protocol.kafka.layout import Field, MessageType, fields_of
from cordwood.protocol.kafka.primitives import (
    STRING_BYTES_MAX,
    TAGS_MAX,
    WireType,
    number_array,
    parse_uvarint,
    refuse_crowd,
    refuse_length,
    skip_tags,
)


def min_bytes(element: WireType | MessageType, version: int, *, flexible: bool) -> int:
    """Return the fewest bytes a value can take, to detect impossible array lengths."""
    if isinstance(element, WireType):
        if element.is_fixed:
            return calcsize(">" + element.value)
        return 1 if flexible else 2 if element is WireType.STRING else 4
    total = 1 if flexible else 0
    for field in fields_of(element):
        if field.is_in(version) and field.tag is None:
            if field.is_array:
                total += 1 if flexible else 4
            elif field.is_optional and not isinstance(field.element, WireType):
                total += 1
            else:
                total += min_bytes(field.element, version, flexible=flexible)
    return total


class DecoderSource(GeneratedSource):
    """Writes the source of one decoder."""

    function: Final = "decode"

    def __init__(self, version: int, *, flexible: bool) -> None:
        names: dict[str, Any] = {
            "new": tuple.__new__,
            "uvarint": parse_uvarint,
            "skip_tags": skip_tags,
            "refuse": refuse_length,
            "crowd": refuse_crowd,
            "numbers": number_array,
            "UUID": UUID,
        }
        super().__init__(version, flexible=flexible, names=names)
        self._after: list[str] = []  # lines that convert the values read to Python objects

    def write(self, message_type: MessageType) -> str:
        """Return the source of ``decode(data, position, end, elements left)``."""
        result = self._struct(message_type)
        self._line(f"return {result}, pos")
        return self._function("def decode(buf, pos, end, left):")

    # --- fixed-width reads, combined

    def _take(self, code: str, variable: str) -> str:
        self._pending.append((code, variable))
        return variable

    def _flush(self) -> None:
        if not self._pending:
            return
        codes = "".join(code for code, _ in self._pending)
        if codes == "B":
            self._line(f"{self._pending[0][1]} = buf[pos]; pos += 1")
        else:
            name = "read_" + codes.replace("?", "t")
            self.names[name] = Struct(">" + codes).unpack_from
            targets = ", ".join(variable for _, variable in self._pending)
            comma = "," if len(self._pending) == 1 else ""
            self._line(f"{targets}{comma} = {name}(buf, pos); pos += {calcsize('>' + codes)}")
        for line in self._after:
            self._line(line)
        self._pending.clear()
        self._after.clear()

    # --- fields

    def _struct(self, message_type: MessageType) -> str:
        """Read every field; return the expression that builds the struct."""
        values: list[str] = []
        tagged: dict[str, Field] = {}
        for field in fields_of(message_type):
            if not field.is_in(self._version):
                values.append(self._constant(field.default))
                continue
            variable = self._name(field.name)
            values.append(variable)
            if field.tag is None:
                self._field(field, variable)
            else:
                tagged[variable] = field
        if self._flexible:
            self._tags(tagged)
        self._flush()
        self.names[message_type.__name__] = message_type
        return f"new({message_type.__name__}, ({', '.join(values)}{',' if values else ''}))"

    def _field(self, field: Field, variable: str) -> None:
        element = field.element
        if isinstance(element, WireType) and element.is_fixed and not field.is_array:
            self._take(element.value, variable)
            if element is WireType.UUID:
                self._after.append(f"{variable} = UUID(bytes={variable})")
        elif isinstance(element, WireType) or field.is_array:
            self._sized(field, variable)
        elif field.is_optional:
            flag = self._take("b", self._name("flag"))
            self._flush()
            self._line(f"{variable} = None")
            with self._block(f"if {flag} >= 0:"):
                self._line(f"{variable} = {self._struct(element)}")
        else:
            self._line(f"{variable} = {self._struct(element)}")

    def _sized(self, field: Field, variable: str) -> None:
        """Read a value with a length prefix: -1, or 0 in flexible versions, is null."""
        size = self._name("n")
        is_short = field.element is WireType.STRING and not field.is_array
        self._take("B" if self._flexible else "h" if is_short else "i", size)
        self._flush()
        if self._flexible:
            self._line(f"if {size} > 127: {size}, pos = uvarint(buf, pos - 1)")
            self._line(f"{size} -= 1")
        if field.is_nullable(self._version):
            with self._block(f"if {size} < 0:"):
                self._line(f"if {size} != -1: refuse({size}, pos)")
                self._line(f"{variable} = None")
            with self._block("else:"):
                self._sized_value(field, variable, size)
        else:
            self._line(f"if {size} < 0: refuse({size}, pos)")
            self._sized_value(field, variable, size)

    def _sized_value(self, field: Field, variable: str, size: str) -> None:
        if field.is_array:
            self._array(field.element, variable, size)
            return
        stop = self._name("stop")
        if field.element is WireType.STRING and self._flexible:
            self._line(f"if {size} > {STRING_BYTES_MAX}: refuse({size}, pos)")
        self._line(f"{stop} = pos + {size}")
        value = {
            WireType.STRING: f'str(buf[pos:{stop}], "utf-8")',
            WireType.BYTES: f"bytes(buf[pos:{stop}])",
            WireType.RECORDS: f"buf[pos:{stop}]",
        }[field.element]  # type: ignore[index]
        self._line(f"{variable} = {value}; pos = {stop}")

    def _array(self, element: WireType | MessageType, variable: str, size: str) -> None:
        least = min_bytes(element, self._version, flexible=self._flexible)
        assert least > 0, element
        self._line(f"if {size} * {least} > end - pos: refuse({size}, pos)")
        self._line(f"left -= {size}")
        self._line(f"if left < 0: crowd({size}, pos)")
        if isinstance(element, WireType) and element.is_fixed:
            assert element not in (WireType.BOOL, WireType.UUID), element
            self._line(f"{variable} = numbers({element.value!r}, {size}).unpack_from(buf, pos)")
            self._line(f"pos += {size} * {least}")
            return
        items = self._name("items")
        self._line(f"{items} = []; add_{items} = {items}.append")
        with self._block(f"for _ in range({size}):"):
            if isinstance(element, WireType):
                item = self._name("item")
                self._sized(item_field(element), item)
                self._line(f"add_{items}({item})")
            else:
                self._line(f"add_{items}({self._struct(element)})")
        self._line(f"{variable} = tuple({items})")

    def _tags(self, tagged: dict[str, Field]) -> None:
        """Read the tag section: decode the fields we know, skip the rest."""
        count = self._take("B", self._name("tags"))
        self._flush()
        if not tagged:
            self._line(f"if {count}: pos = skip_tags(buf, pos - 1)")
            return
        for variable, field in tagged.items():
            self._line(f"{variable} = {self._constant(field.default)}")
        with self._block(f"if {count}:"):
            self._line(f"{count}, pos = uvarint(buf, pos - 1)")
            self._line(f"if {count} > {TAGS_MAX}: refuse({count}, pos)")
            with self._block(f"for _ in range({count}):"):
                self._tag_cases(tagged)

    def _tag_cases(self, tagged: dict[str, Field]) -> None:
        tag, size, stop = self._name("tag"), self._name("n"), self._name("stop")
        self._line(f"{tag}, pos = uvarint(buf, pos)")
        self._line(f"{size}, pos = uvarint(buf, pos)")
        self._line(f"{stop} = pos + {size}")
        word = "if"
        for variable, field in tagged.items():
            with self._block(f"{word} {tag} == {field.tag}:"):
                self._field(field, variable)
            word = "elif"
        self._line(f"else: pos = {stop}")
        self._line(f"if pos != {stop}: refuse({size}, pos)")
