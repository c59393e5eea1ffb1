"""Protocols without I/O: bytes to frozen requests, and replies to bytes.

``line`` is the protocol you can type into ``nc``; ``kafka`` is Kafka's; ``api`` holds the messages
of the HTTP API. Nothing here opens a socket, reads a clock, starts a thread or blocks. ``server``
passes received bytes to these classes and sends what they encode, so the rules of a protocol are
tested in memory, with the bytes split at any position.
"""
