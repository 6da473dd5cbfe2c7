"""The version, read by the build back end too."""

__version__ = "0.1.0"
