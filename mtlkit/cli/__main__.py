"""Runs ``python -m mtlkit.cli``."""

from mtlkit.cli import main

if __name__ == "__main__":
    main()
