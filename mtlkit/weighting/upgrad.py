"""UPGrad: unconflicting projection of gradients."""

from torch import Tensor

from mtlkit.config import register_method
from mtlkit.engine.gram import eps_of
from mtlkit.method import State, on_host
from mtlkit.weighting._forms.options import PreferredMerge
from mtlkit.weighting._solvers import dual_cone_projections
from mtlkit.weighting._solvers.geometry import Matrix


@register_method("upgrad")
class UPGrad(PreferredMerge):
    r"""Project each task gradient onto the cone where no task is made worse, and take the mean.

    .. math:: \frac1K \sum_k \pi(G_k), \qquad
        \pi(x) = \operatorname{argmin}_y \|y - x\|\ \text{ subject to }
        \langle G_j, y \rangle \ge 0 \text{ for all } j

    so that the merged gradient conflicts with no task. The K projections are non-negative least squares
    problems with one common matrix, solved together and exactly.

    Update scale: K identical gradients g merge to g.

    Differences: none from the paper's definition. TorchJD and LibMTL divide the Gram matrix by its trace
    and add 1e-4 to its diagonal; where the trace is less than 1e-4 they return the mean. Here K times
    the rounding error is added to the diagonal of the cosines, so that rounding does not decide where
    some combination of the gradients nearly vanishes, and nothing depends on their scale; there, a
    larger change of them can still change the projections a lot.

    Args:
        preference: numbers p of zero or more, one per task or by name, for the merged gradient
            :math:`\sum_k p_k\, \pi(G_k)`; tasks that a mapping does not name have 1. By default all are
            1/K. Named ``pref_vector`` in TorchJD.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("upgrad", tasks=2).combine(grads)
        tensor([0.5000, 1.0000])
    """

    paper = "Quinton and Rey, Jacobian Descent for Multi-Objective Optimization, arXiv 2406.16232, 2024"
    url = "https://arxiv.org/abs/2406.16232"
    idea = "Remove conflicts: project or turn gradients"
    solves_on_host = True

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        weights = on_host(_projections, gram, self.preferred_or_mean(state), rounding=eps_of(gram))
        return weights.to(gram.dtype), state


def _projections(gram: Matrix, preferred: Matrix, rounding: float) -> Matrix:
    return preferred @ dual_cone_projections(gram, rounding)
