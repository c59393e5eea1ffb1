"""cordwood: a durable message log with Kafka's protocol and plain lines in front, Spark behind.

The rooms, from the ground up: ``errors``, ``model``, ``config`` and ``clock`` are shared words;
``batch`` is the record-batch layout; ``decide`` holds pure decisions; ``meta`` the small metadata
store; ``log`` the segments on disk; ``wire`` the protocols without sockets. ``docs/tour.md`` walks
the data's way through them.
"""

__version__ = "0.1.0"
