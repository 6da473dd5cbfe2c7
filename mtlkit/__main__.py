"""The command ``mtlkit``, also as ``python -m mtlkit``."""

import sys

from mtlkit.config.extras import missing_extra


def main() -> None:
    """Run the command line, or say which extra it needs."""
    try:
        from mtlkit.cli import main as run
    except ModuleNotFoundError as error:
        sys.exit(f"mtlkit: {missing_extra(error, 'the command line') or error}")
    run()


if __name__ == "__main__":
    main()
