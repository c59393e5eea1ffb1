"""Load on a broker, measured from outside: what ``cordwood bench`` runs on your machine.

Every figure is a client's: from handing a record over to the broker's answer. ``batches`` moves
whole batches with our own client, which costs so little that the broker is what is measured;
``librdkafka`` does the same with the client most applications use, record by record; ``single``
sends one record at a time and waits; ``lines`` pushes text into the ingress listener; ``device``
asks the disk alone what a sync costs. ``clients`` runs several at once; ``figures`` has the
numbers.
"""

from cordwood.lab.loadtest.results import Load, Results

__all__ = ["Load", "Results"]
