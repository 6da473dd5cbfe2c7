"""Data sets: embedded ones, and loaders of the published ones."""
