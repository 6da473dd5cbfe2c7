"""Run a function in N processes joined by gloo."""

from mtlkit.testing.processes import run_processes

__all__ = ["run_processes"]
