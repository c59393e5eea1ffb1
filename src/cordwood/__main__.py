"""``python -m cordwood`` is the command line."""

from cordwood.cli import main

if __name__ == "__main__":
    main()
