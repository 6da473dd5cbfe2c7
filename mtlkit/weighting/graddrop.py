"""GradDrop: gradient sign dropout."""

from typing import Annotated, Any

import torch
from torch import Tensor

from mtlkit.config import Ge, Le, Uniform, register_method
from mtlkit.engine.randomness import uniform
from mtlkit.method import GradientAggregator, State, Tasks
from mtlkit.weighting._forms.options import Numbers, per_task

_Fraction = Annotated[float, Ge(0), Le(1)]


@register_method("graddrop")
class GradDrop(GradientAggregator):
    r"""Keep, in every coordinate, only the task gradients of one randomly chosen sign.

    With the purity :math:`P = \frac12 (1 + \sum_k G_k / \sum_k |G_k|)` and :math:`U` uniform on
    [0, 1), the merged gradient is

    .. math:: \sum_k (\ell_k + (1 - \ell_k) M_k) \circ G_k, \qquad
        M_k = [P > U][G_k > 0] + [P \le U][G_k < 0]

    so the purer a sign, the more often it is kept. A coordinate is one feature of one sample:
    nothing is summed over the batch first. The merge needs whole gradients, not only the Gram matrix.

    Update scale: K identical gradients g merge to K g.

    Differences: the GradDrop paper's layer, and LibMTL's, multiply by the sign of the activation and
    sum over the batch before they take the purity. The RotoGrad paper's baseline, and TorchJD's, work
    on the gradient as it is, as here. No leak is the default of LibMTL and TorchJD too.

    Args:
        leak: fraction of each task's gradient that is never dropped, from 0 to 1: one number, or one per
            task in task order or by name.
        seed: seed of the random choices. If the features are one tensor, a batch that is split evenly
            over processes gets the choices of the whole batch; with several tensors it gets others, of
            the same distribution.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("graddrop", tasks=2).combine(grads)
        tensor([2., 1.])
    """

    paper = (
        "Chen et al., Just Pick a Sign: Optimizing Deep Multitask Models with Gradient Sign Dropout, "
        "NeurIPS 2020"
    )
    url = "https://arxiv.org/abs/2010.06808"
    idea = "Remove conflicts: project or turn gradients"
    search_space = {"leak": Uniform(0.0, 0.9)}

    def __init__(
        self,
        tasks: Tasks,
        *,
        leak: _Fraction | Numbers = 0.0,
        seed: int = 0,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        given = [leak] * len(self.tasks) if isinstance(leak, int | float) else leak
        leaks = per_task("leak of graddrop", given, self.tasks, 0.0, _Fraction)
        self.leak = leak
        self.seed = seed
        self.add_constant("leaks", leaks)
        self.add_state("draws", 0, per="all")

    def merge(self, grads: Tensor, state: State) -> tuple[Tensor, State]:
        leaks = state.leaks.to(grads.dtype)
        part = grads.clamp(min=0)  # (P, N); one at a time, because it is as large as all gradients
        positive, leaked_up = part.sum(dim=0), leaks @ part  # (N,)
        part = torch.clamp(grads, max=0, out=part)
        negative, leaked_down = part.sum(dim=0), leaks @ part
        count = grads.shape[1]  # coordinates of this process's samples
        chance = uniform(self.seed, state.draws, count, offset=state.rank * count)
        up = chance * (positive - negative) < positive  # P > U, without a quotient of zeros
        merged = torch.where(up, positive + leaked_down, negative + leaked_up)
        return merged, state.replace(draws=state.draws + 1)
