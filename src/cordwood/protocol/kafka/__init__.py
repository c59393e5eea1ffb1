"""Kafka's wire protocol without sockets: bytes in, typed requests out, and back.

- ``primitives`` the words: wire types, version marks, varints
- ``messages``   the messages, as typed tuples whose annotations are the format
- ``schema``     the APIs and versions we serve, in one table
- ``layout``     annotations read into fields; ``decoding`` and ``encoding`` write source from them
- ``codec``      compiles that source per message and version: ``decode``, ``encode``, ``explain``
- ``frames``     headers: frame → ``Request``, reply → buffers
- ``connection`` cuts the byte stream into frames
- ``subscription`` the topics in a consumer's own bytes

It never reads record batches (``batch`` does) and never decides an answer (``broker`` does).
"""
