"""The command line: one function per command; each imports what it needs when it runs.

Data goes to stdout, everything else to stderr. Exit codes: 0 ok, 1 failed, 2 usage, 3 not found,
4 conflict, 5 a check found problems, 6 unavailable, 130 interrupted.
"""

from __future__ import annotations

import sys

from cordwood.errors import CordwoodError

FAILED = 1
INTERRUPTED = 130


def main() -> None:
    """Run one command; our errors become a one-line message and an exit code."""
    from typer import Abort
    from typer.exceptions import TyperException

    from cordwood.cli.app import app
    from cordwood.cli.output.refusal import refusal

    try:
        sys.exit(app(prog_name="cordwood", standalone_mode=False) or 0)
    except TyperException as error:
        is_help = type(error).__name__ == "NoArgsIsHelpError"
        text = error.format_message() if is_help else f"cordwood: {refusal(error)}"
        print(text, file=sys.stderr)
        sys.exit(error.exit_code)
    except Abort:
        print("cordwood: stopped; nothing was changed", file=sys.stderr)
        sys.exit(FAILED)
    except CordwoodError as error:
        print(f"cordwood: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""  # a file the user named
        print(f"cordwood: {where}{error.strerror or error}", file=sys.stderr)
        sys.exit(FAILED)
