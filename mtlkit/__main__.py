"""Runs ``python -m mtlkit``."""

from mtlkit.cli import main

if __name__ == "__main__":
    main()
