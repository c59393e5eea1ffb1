"""The typed messages of the HTTP API, used by the broker, the jobs and the command line; no I/O.

A request is a ``Call`` (``call``) that knows its method, path and reply. ``codec`` decodes and
encodes messages; the other modules declare them, one module per subject.
"""
