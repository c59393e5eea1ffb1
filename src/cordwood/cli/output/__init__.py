"""Output of commands: tables, rows, record formats, progress."""
