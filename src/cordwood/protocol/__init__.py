"""Protocols without I/O: bytes in, frozen requests out, and replies back into bytes.

``line`` is the protocol you can type into ``nc``; ``kafka`` is Kafka's. Nothing here opens a
socket, reads a clock, starts a thread or blocks: ``net`` feeds these classes what arrived and
writes what they encode, so a protocol's rules are proven in memory, with the bytes cut anywhere.
"""
