"""Statistics and reports of comparisons."""
