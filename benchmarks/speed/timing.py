"""Timing by turns: on a noisy machine only ratios of one interleaved run mean something."""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

__all__ = ["Row", "chart_command", "interleave", "keep_memory", "ratio", "set_threads", "use_cpu_time"]

_clock = time.perf_counter


@dataclass(frozen=True)
class Row:
    """One line of a table: what was measured, the value, and what it must not exceed."""

    group: str
    name: str
    value: float
    unit: str = "x"
    limit: float | None = None
    at_least: bool = False

    @property
    def verdict(self) -> str:
        """Return whether the limit is kept; empty if there is none."""
        if self.limit is None:
            return ""
        kept = self.value >= self.limit if self.at_least else self.value <= self.limit
        sign = ">=" if self.at_least else "<="
        return f"{'ok' if kept else 'MISSED'} ({sign} {self.limit:g})"


def interleave(
    candidates: Mapping[str, Callable[[], object]], rounds: int = 20, warmup: int = 2, repeats: int = 1
) -> dict[str, list[float]]:
    """Return the seconds of every candidate in every round; candidates take turns, in alternating order.

    With ``repeats``, a turn is that many calls and the value their mean: for calls so short that a
    single one would measure how the others have emptied the caches. A candidate whose cost repeats after
    several calls has these in its ``period``. As in ``timeit``, Python's
    collector of garbage waits meanwhile: what it takes depends on what the others left behind.
    """
    for _ in range(warmup):
        for run in candidates.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    names = list(candidates)
    try:
        for turn in range(rounds):
            gc.collect(1)  # what the round before left; a whole collection takes longer than a step
            gc.disable()
            for name in names if turn % 2 == 0 else reversed(names):
                run = candidates[name]
                calls = repeats * getattr(run, "period", 1)
                start = _clock()
                for _ in range(calls):
                    run()
                seconds[name].append((_clock() - start) / calls)
    finally:
        gc.enable()
    return seconds


def ratio(seconds: Mapping[str, list[float]], name: str, base: str) -> float:
    """Return the median over the rounds of the quotient within a round, in which slow moments cancel."""
    return statistics.median(a / b for a, b in zip(seconds[name], seconds[base], strict=True))


def chart_command(draw: Callable[[list[Row], Path], None], table: str) -> None:
    """Return the command that draws the documentation's chart of a table from its stored values."""
    parser = argparse.ArgumentParser(description="draw the chart of the documentation")
    parser.add_argument("measured", type=Path, help=f"what `benchmarks.speed {table} --json` wrote")
    parser.add_argument("chart", type=Path, help="the SVG file")
    arguments = parser.parse_args()
    draw([Row(**row) for row in json.loads(arguments.measured.read_text())], arguments.chart)


def use_cpu_time() -> None:
    """Count the CPU time of one thread, which other processes hardly change: for a busy machine."""
    global _clock
    _clock = time.process_time


def set_threads(number: int) -> None:
    """Let torch use this many threads, or one where CPU time is counted."""
    torch.set_num_threads(1 if _clock is time.process_time else number)


def keep_memory() -> None:
    """Let the C library keep what is freed, instead of asking the system for it in every step.

    Pages that the system hands out are cleared at their first use, which may take as long as the
    computation, and sometimes does: it is the largest noise on a virtual machine.
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        trim_threshold, top_pad, mmap_threshold = -1, -2, -3
        library.mallopt(mmap_threshold, 2**25)  # more is refused
        library.mallopt(trim_threshold, 2**31 - 1)
        library.mallopt(top_pad, 2**28)
