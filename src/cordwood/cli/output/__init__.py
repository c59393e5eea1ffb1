"""How commands print: tables, rows, record formats, progress."""
