"""Kafka's messages as typed, frozen tuples; the annotations are the wire format.

One module per family. A request is called ``<Api>Request`` and its reply ``<Api>Response``, as in
Kafka's documentation; the structs inside them have shorter names. Fields are in wire order and have
Kafka's defaults, so a field that a version does not carry decodes to its default. Sequences decode
to tuples; any sequence may be encoded. Nothing here has behaviour.
"""
