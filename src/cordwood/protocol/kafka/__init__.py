"""Kafka's wire protocol without sockets: bytes to typed requests, and replies to bytes.

- ``primitives`` wire types, version markers, varints
- ``messages``   the messages, as typed tuples whose annotations are the format
- ``schema``     the table of the APIs and versions we serve
- ``layout``     annotations as fields; ``decoding`` and ``encoding`` generate source from them
- ``codec``      compiles that source per message and version: ``decode``, ``encode``, ``explain``
- ``frames``     headers: a frame to a ``Request``, a reply to buffers
- ``connection`` splits the byte stream into frames
- ``subscription`` reads the topics from a consumer's subscription

It never reads record batches (``batch`` does) and never decides an answer (``broker`` does).
"""
