"""The HTTP API's messages and how they are decoded: what crosses the wire, typed, without I/O."""
