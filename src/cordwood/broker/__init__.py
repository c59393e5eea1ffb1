"""The services: what a request means, whichever listener it came through.

``broker`` wires them together. ``topics``, ``produce``, ``readers``, ``monitor``, ``commands`` and
``ingest`` hold one service each; ``kafka`` handles Kafka requests and ``jobs`` serves Spark jobs.
``append_notifier`` wakes readers that wait for records. Services run on the event loop and never
block it: partition changes run on the writer thread, durable metadata changes on the metadata
thread, and both return awaitables. Nothing here knows about sockets.
"""
