"""Comparisons and searches: configs, jobs, launchers and run folders."""
