"""Pure decisions: facts, settings and the time go in, a plan with its reasons comes out.

Nothing here reads a clock, touches a file or writes a log line, so a plan can be shown
(``--dry-run``), tested and applied by one and the same function.
"""
