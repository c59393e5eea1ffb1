"""The line protocol, for both listeners and for client and server, without I/O.

- ``framing``: newline text or 4-byte-length frames, detected from a connection's first bytes.
- ``ingress``: ``IngressConnection``, from blocks of ``routing_key|timestamp|n|payload`` to events.
- ``commands``: the table of commands; ``control``: ``ControlConnection``, which parses them.
- ``replies`` and ``records``: replies, encoded by the broker and parsed by the client.
- ``serial``: how a producer's ``n`` counts and wraps.

The grammar with examples is in ``docs/protocols-line.md``.
"""

from cordwood.protocol.line.commands import (
    COMMANDS,
    Request,
    StartPosition,
    encode_help,
    parse_command,
)
from cordwood.protocol.line.control import ControlConnection, Refused
from cordwood.protocol.line.framing import Framing, Splitter, TooLong
from cordwood.protocol.line.ingress import Frames, HalfLine, Hello, IngressConnection, Lines
from cordwood.protocol.line.records import Line, encode_records, parse_record
from cordwood.protocol.line.replies import Welcome, encode_error

__all__ = [
    "COMMANDS",
    "ControlConnection",
    "Frames",
    "Framing",
    "HalfLine",
    "Hello",
    "IngressConnection",
    "Line",
    "Lines",
    "Refused",
    "Request",
    "Splitter",
    "StartPosition",
    "TooLong",
    "Welcome",
    "encode_error",
    "encode_help",
    "encode_records",
    "parse_command",
    "parse_record",
]
