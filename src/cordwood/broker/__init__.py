"""The services: what a request means, whichever listener it came through.

``broker`` wires them together; ``topics``, ``produce``, ``ingress``, ``readers`` and ``monitor``
are a service each; ``notifier`` wakes readers that wait for data. Desks run on the event loop and
never block it: what changes a partition goes to the writer thread, what must be durable in the
metadata store goes to its thread, and both come back as awaitables. Sockets are unknown here.
"""
