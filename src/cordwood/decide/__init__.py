"""Pure policies: state, settings and the time go in; a plan with its reasons comes out.

Nothing here reads a clock, touches a file or writes a log line. One function therefore serves the
tests, ``--dry-run`` and the real run.
"""
