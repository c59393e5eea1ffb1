"""Kafka's messages as typed, frozen tuples; the annotations are the wire format.

One module per family. A request is called ``<Api>Request`` and its reply ``<Api>Response``, as in
Kafka's documents; what lies inside them has shorter names. Fields are in wire order and hold
Kafka's defaults, so a field a version does not carry decodes to its default. Sequences decode to
tuples; any sequence may be encoded. Nothing here has behaviour.
"""
