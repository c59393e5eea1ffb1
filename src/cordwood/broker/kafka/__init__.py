"""The Kafka service: each API's request to what it means, through the same services the lines use.

``service`` is the table from API to handler and the one way in: whoever asks passes through
``KafkaDesk.answer``, which is where authentication and quotas will stand. ``produce``, ``fetch``,
``offsets``, ``metadata``, ``admin``, ``groups`` and ``transactions`` are a family of APIs each.
Handlers take and return the typed messages of ``wire.kafka``; they never see frames, and Produce
and Fetch never see records.
"""
