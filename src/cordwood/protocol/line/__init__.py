"""The line protocol, for both listeners and for client and server, without I/O.

- ``framing``: newline text or 4-byte-length frames, detected from a connection's first bytes.
- ``ingress``: ``IngressConnection``, from blocks of ``routing_key|timestamp|n|payload`` to events.
- ``commands``: the table of commands; ``control``: ``ControlConnection``, which parses them.
- ``replies`` and ``records``: replies, encoded by the broker and parsed by the client.
- ``serial``: how a producer's ``n`` counts and wraps.

The grammar with examples is in ``docs/protocols-line.md``.
"""
