"""A step with mtlkit and with its peers, as a ratio to the plain sum of losses; K = 3 and 10.

Usage: python -m benchmarks.speed.peers benchmarks/speed/peers.json docs/images/speed.svg

draws the chart of the documentation from what ``python -m benchmarks.speed peers --json FILE.json`` has
measured. LibMTL is taken from where it is installed, or from the folder that MTLKIT_LIBMTL names.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from benchmarks.speed.steps import Candidate
from benchmarks.speed.timing import Row, chart_command, interleave, ratio, set_threads
from mtlkit.errors import MtlkitError
from mtlkit.integrations.libmtl import load_trainer

NUMBERS = (3, 10)
GROUP = "step, ResNet18 3 x 32 x 32, batch 64, K={}, / plain sum"
PARAMETERS = {
    "mtlkit pcgrad(wrt=parameters)": "pcgrad(wrt=parameters)",
    "mtlkit upgrad(wrt=parameters)": "upgrad(wrt=parameters)",
}
FEATURES = {
    "mtlkit pcgrad": "pcgrad",
    "mtlkit upgrad": "upgrad",
    "mtlkit rotograd": "rotograd",
    "geotorch's rotations in rotograd": "rotograd(backend=geotorch)",
}


class TorchJD(Candidate):
    """TorchJD's ``mtl_backward``: the Jacobian of the backbone, merged by an aggregator of theirs."""

    def __init__(self, name: str, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        super().__init__(None, batch)
        import torchjd.aggregation

        self.aggregator = getattr(torchjd.aggregation, name)()

    def __call__(self) -> None:
        from torchjd.autojac import jac_to_grad, mtl_backward

        self.optimizer.zero_grad()
        x, y = self.batch
        features = self.net.backbone(x)
        mtl_backward(self.net.head_losses(features, y), features=features)
        jac_to_grad(self.net.backbone.parameters(), self.aggregator)
        self.optimizer.step()


class Autogram(Candidate):
    """TorchJD's ``autogram``: the Gram matrix of the backbone's Jacobian, then one weighted backward."""

    def __init__(self, name: str, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        super().__init__(None, batch)
        import torchjd.aggregation
        from torchjd.autogram import Engine

        self.weighting = getattr(torchjd.aggregation, f"{name}Weighting")()
        self.engine = Engine(self.net.backbone, batch_dim=None)  # BatchNorm mixes the samples

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        losses = torch.stack(self.net.losses(*self.batch))
        losses.backward(self.weighting(self.engine.compute_gramian(losses)))
        self.optimizer.step()


class _LibMTL(Candidate):
    """LibMTL's hard sharing with a weighting of theirs, stepped as its Trainer does."""

    def __init__(self, name: str, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        super().__init__(None, batch)
        import LibMTL.weighting
        from LibMTL.architecture import HPS

        class Model(HPS, getattr(LibMTL.weighting, name)):
            def zero_grad_share_params(self) -> None:
                # theirs leaves no gradient to write into, since torch 2.0
                self.encoder.zero_grad(set_to_none=False)

        tasks = [str(task) for task in range(batch[1].shape[1])]
        decoders = torch.nn.ModuleDict(zip(tasks, self.net.heads, strict=True))
        device = torch.device("cpu")
        self.model = Model(tasks, lambda: self.net.backbone, decoders, False, False, device)
        self.model.init_param()

    def __call__(self) -> None:
        x, y = self.batch
        found = self.model(x)
        losses = torch.zeros(len(found))
        for k, prediction in enumerate(found.values()):
            losses[k] = torch.nn.functional.binary_cross_entropy_with_logits(prediction[:, 0], y[:, k])
        self.optimizer.zero_grad()
        self.model.backward(losses)
        self.optimizer.step()


def _has_libmtl() -> bool:
    sys.path += [folder for folder in (os.environ.get("MTLKIT_LIBMTL"),) if folder]
    try:
        load_trainer("cpu")
    except MtlkitError as error:
        print(f"without LibMTL: {error}", file=sys.stderr)
        return False
    return True


def run(rounds: int = 12) -> list[Row]:
    """Time all candidates by turns, for each number of tasks."""
    set_threads(2)
    rows = []
    libmtl = ("PCGrad",) if _has_libmtl() else ()
    for number in NUMBERS:
        torch.manual_seed(0)
        batch = (torch.randn(64, 3, 32, 32), torch.randint(0, 2, (64, number)).float())
        candidates = {"plain": Candidate(None, batch)}
        # gradients of the parameters, as the peers have them, then those of the features
        candidates |= {name: Candidate(spec, batch) for name, spec in PARAMETERS.items()}
        candidates |= {f"TorchJD {name}": TorchJD(name, batch) for name in ("PCGrad", "UPGrad")}
        candidates |= {f"TorchJD autogram {n}": Autogram(n, batch) for n in ("PCGrad", "UPGrad")}
        candidates |= {f"LibMTL {name}": _LibMTL(name, batch) for name in libmtl}
        candidates |= {name: Candidate(spec, batch) for name, spec in FEATURES.items()}
        seconds = interleave(candidates, rounds, warmup=2)
        names = [name for name in candidates if name != "plain"]
        rows += [Row(GROUP.format(number), name, ratio(seconds, name, "plain")) for name in names]
    return rows


def draw(rows: list[Row], path: Path) -> None:
    """Draw bars of the ratios, a panel per number of tasks."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    gray = "#6f7782"  # 4.5 to 1 on white and on black
    inks = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    with rc_context(dict.fromkeys(inks, gray) | {"svg.hashsalt": "peers"}):
        figure = Figure(figsize=(8.5, 2.9), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        panels[0].invert_yaxis()  # of both
        for panel, number in zip(panels, NUMBERS, strict=True):
            shown = [row for row in rows if row.group == GROUP.format(number)]
            names = [row.name for row in shown]
            colors = ["#2a78d6" if "mtlkit" in name else "#e6850e" for name in names]
            panel.barh(names, [row.value for row in shown], color=colors)
            for place, row in enumerate(shown):
                panel.text(row.value, place, f" {row.value:.2f}", va="center", fontsize=9)
            panel.axvline(1, color=gray, linewidth=1, linestyle=":")
            panel.set_xlim(0, 1.15 * max(row.value for row in shown))
            panel.set_title(f"{number} tasks: time of a step, plain sum = 1", fontsize=10)
            for side in ("top", "right"):
                panel.spines[side].set_visible(False)
        figure.savefig(path, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    chart_command(draw, "peers")
