"""Kafka requests: each API's handler, on top of the services that the line protocol uses too.

``dispatcher`` maps each API to its handler; every request passes through
``RequestDispatcher.answer``. ``produce``, ``fetch``, ``offsets``, ``metadata``, ``admin``,
``placement``, ``configs``, ``groups``, ``commits`` and ``transactions`` each handle a family of
APIs. Handlers take and return the typed messages of ``protocol.kafka``. They never see frames, and
the handlers of Produce and Fetch never decode records.
"""
