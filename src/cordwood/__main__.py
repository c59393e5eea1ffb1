"""``python -m cordwood`` is the command line."""

from cordwood.cli import main

main()
