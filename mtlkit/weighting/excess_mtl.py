"""ExcessMTL: weigh the tasks by their estimated excess risk."""

from typing import Annotated, Any

import torch
from torch import Tensor

from mtlkit.config import Ge, Gt, LogUniform, register_method
from mtlkit.engine.gram import safe_divide
from mtlkit.method import State, Tasks
from mtlkit.weighting._forms.simplex import SimplexWeights


@register_method("excess_mtl")
class ExcessMTL(SimplexWeights):
    r"""Give more weight to the tasks with the larger estimated excess risk.

    .. math:: w_k \propto w_k \exp(\eta\, E_k / E_k^0), \qquad
        E_k = G_k^\top H_k^{-1} G_k, \quad H_k = \Big(\sum_{\tau \le t} \|G_k^\tau\|^2\Big)^{1/2} I

    where :math:`E_k^0` is the mean over the task's first ``warmup`` steps. The weights start at 1/K, and
    stay as they are while one of the present tasks is in its warm-up. A noisy label raises a task's loss
    but not its excess risk, so such a task does not take over. The exponent of a task whose gradients
    were zero in its warm-up is zero.

    Update scale: K identical gradients g merge to g.

    Differences: the paper's :math:`H_k` is AdaGrad's diagonal, a sum of squares per parameter and
    task. A feature's gradient belongs to one sample of one batch and has no counterpart in the next,
    so this is AdaGrad's norm version: one sum per task, read off the Gram matrix. It weighs all
    coordinates alike, and its state is K numbers in place of K copies of the shared parameters. The
    weights sum to one, as in the paper and in TorchJD; in the authors' code and in LibMTL to K.

    Args:
        eta: step size of the weights. 1 in the authors' command for Office-Home and in TorchJD;
            LibMTL has 0.01.
        warmup: number of steps that set the scale of each task. One in the authors' code and in LibMTL,
            three epochs in the paper's appendix; TorchJD has 0, which uses the excess risks unscaled.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("excess_mtl", tasks=2).combine(grads)
        tensor([0.5000, 0.5000])
    """

    paper = "He et al., Robust Multi-Task Learning with Excess Risks, ICML 2024"
    url = "https://arxiv.org/abs/2402.02009"
    idea = "A chosen point of the Pareto front"
    search_space = {"eta": LogUniform(0.01, 2.0)}
    reads_angles = False

    def __init__(
        self,
        tasks: Tasks,
        *,
        eta: Annotated[float, Gt(0)] = 1.0,
        warmup: Annotated[int, Ge(1)] = 1,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.eta = eta
        self.warmup = warmup
        self.add_state("squares", 0.0)
        self.add_state("baseline", 0.0)
        self.add_state("seen", 0)

    def move(self, w: Tensor, gram: Tensor, state: State) -> tuple[Tensor, State]:
        squares = state.squares + gram.diagonal()
        excess = safe_divide(gram.diagonal(), squares.sqrt())
        relative = safe_divide(excess, state.baseline / self.warmup)
        moved = torch.softmax(w.log() + self.eta * relative, dim=0)
        warm = state.seen < self.warmup
        return torch.where(warm.any(), w, moved), state.replace(
            squares=squares,
            baseline=torch.where(warm, state.baseline + excess, state.baseline),
            seen=state.seen + 1,
        )
