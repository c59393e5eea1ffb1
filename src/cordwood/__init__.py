"""cordwood: a durable message log with Kafka's protocol and plain lines in front, Spark behind.

The packages, bottom up: ``errors``, ``model``, ``config`` and ``clock`` are shared by all;
``batch`` is the record-batch layout; ``decide`` holds pure decisions; ``metadata`` the small
metadata store; ``log`` the segments on disk; ``protocol`` the protocols without sockets;
``broker`` the services; ``server`` the listeners; ``pipeline`` the Spark jobs. ``docs/tour.md``
follows a record through them.
"""

__version__ = "0.1.0"
