"""The typed messages of the HTTP API and their decoding, without I/O."""
