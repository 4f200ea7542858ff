"""``python -m sequoia`` is the command ``sequoia``."""

from sequoia.cli import main

if __name__ == "__main__":
    main(prog_name="sequoia")
