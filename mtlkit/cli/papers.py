"""Where the papers of the methods are, and the ideas that group the methods."""

from __future__ import annotations

_ARXIV = {
    "aligned_mtl": "2305.19000",
    "cagrad": "2110.14048",
    "config": "2408.11104",
    "cosmos": "2103.12880",
    "db_mtl": "2308.12029",
    "dualproj": "1706.08840",
    "dwa": "1803.10704",
    "excess_mtl": "2402.02009",
    "fairgrad": "2402.15638",
    "famo": "2306.03792",
    "geometric_mean": "1904.08492",
    "gls": "1904.08492",
    "graddrop": "2010.06808",
    "gradnorm": "1711.02257",
    "gradvac": "2010.05874",
    "krum": "1703.02757",
    "mgda": "1810.04650",
    "moco": "2210.12624",
    "modo": "2305.20057",
    "nash_mtl": "2202.01017",
    "normalize": "2103.02631",
    "pcd": "2606.29521",
    "pcgrad": "2001.06782",
    "random": "2111.10603",
    "rlw": "2111.10603",
    "rotate": "2103.02631",
    "rotate_only": "2103.02631",
    "rotograd": "2103.02631",
    "scale": "2103.02631",
    "scale_only": "2103.02631",
    "sdmgrad": "2305.18409",
    "si": "2202.01017",
    "stch": "2402.19078",
    "torchjd": "2406.16232",
    "trimmed_mean": "1803.01498",
    "upgrad": "2406.16232",
    "uw": "1705.07115",
}
_IMTL = "https://openreview.net/forum?id=IMPnRXEWpvr"
_ELSEWHERE = {
    "cr_mogm": "https://proceedings.neurips.cc/paper_files/paper/2022/hash/f91bd64a3620aad8e70a27ad9cb3ca57-Abstract-Conference.html",
    "imtl": _IMTL,
    "imtl_g": _IMTL,
    "imtl_l": _IMTL,
    "pbi": "https://doi.org/10.1109/TEVC.2007.892759",
}

IDEAS: dict[str, tuple[str, ...]] = {
    "No intervention: the baseline of every comparison": ("sum", "vanilla", "mean", "constant"),
    "Homogenize sizes and directions (RotoGrad)": (
        "rotograd",
        "rotate",
        "rotate_only",
        "scale",
        "scale_only",
        "normalize",
    ),
    "Equal shares: no task dominates by its size": (
        "imtl",
        "imtl_g",
        "imtl_l",
        "gradnorm",
        "db_mtl",
        "si",
    ),
    "Weigh losses: by uncertainty, progress or chance": (
        "uw",
        "dwa",
        "famo",
        "rlw",
        "gls",
        "geometric_mean",
    ),
    "Remove conflicts: project or turn gradients": (
        "pcgrad",
        "gradvac",
        "graddrop",
        "config",
        "upgrad",
        "dualproj",
        "aligned_mtl",
    ),
    "A common descent direction, or a fair bargain": (
        "mgda",
        "cagrad",
        "nash_mtl",
        "fairgrad",
        "moco",
        "modo",
        "sdmgrad",
        "cr_mogm",
    ),
    "A chosen point of the Pareto front": ("stch", "pbi", "cosmos", "excess_mtl", "pcd"),
    "Robust against outliers, and references": ("krum", "trimmed_mean", "random", "torchjd"),
}
"""Methods by what they do, for the index of the documentation."""


def paper_link(name: str) -> str:
    """Address of the paper of a method or alias; empty where there is none."""
    number = _ARXIV.get(name)
    return f"https://arxiv.org/abs/{number}" if number else _ELSEWHERE.get(name, "")
