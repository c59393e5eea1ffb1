"""The load test that ``cordwood bench`` runs against a broker, measured at the client.

Every latency is measured by a client, from sending a record to the broker's response. ``batches``
sends whole batches with our own client, whose overhead is so low that it measures the broker.
``librdkafka`` does the same record by record, with the client that most applications use.
``single`` sends one record at a time and waits for it. ``lines`` pushes text to the ingress
listener. ``device`` measures fdatasync on the disk alone. ``clients`` runs several clients
concurrently; ``results`` holds the numbers.
"""

from cordwood.lab.loadtest.results import Load, Results

__all__ = ["Load", "Results"]
