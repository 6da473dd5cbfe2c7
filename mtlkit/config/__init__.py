"""Spec strings, registries, settings, search ranges, plugins and files."""
