"""DualProj: the mean gradient, projected so that no task is made worse."""

from torch import Tensor

from mtlkit.config import register_method
from mtlkit.engine.gram import eps_of
from mtlkit.method import State, on_host
from mtlkit.weighting._forms.options import PreferredMerge
from mtlkit.weighting._solvers import dual_cone_weights


@register_method("dualproj")
class DualProj(PreferredMerge):
    r"""Project the mean gradient onto the cone where no task is made worse.

    .. math:: \operatorname{argmin}_y \Big\|y - \frac1K \sum_k G_k\Big\|\
        \text{ subject to } \langle G_j, y \rangle \ge 0 \text{ for all } j

    Only the Gram matrix is needed. The solution is exact, by non-negative least squares.

    Update scale: K identical gradients g merge to g.

    Differences: the paper's quadratic program has the gradient of the newest task in place of the mean.
    TorchJD adds 1e-4 to the diagonal of the Gram matrix divided by its trace, and returns the mean where
    the squared norms sum to less than 1e-4. Here K times the rounding error is added to the diagonal of
    the cosines, so that rounding does not decide where some combination of the gradients nearly
    vanishes; there, a larger change of them can still change the projection a lot. LibMTL does not have
    the method.

    Args:
        preference: numbers p of zero or more, one per task or by name; :math:`\sum_k p_k G_k` is then
            projected in place of the mean. Tasks that a mapping does not name have 1. By default all are
            1/K. Named ``pref_vector`` in TorchJD.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("dualproj", tasks=2).combine(grads)
        tensor([0.5000, 0.5000])
    """

    paper = "Lopez-Paz and Ranzato, Gradient Episodic Memory for Continual Learning, NeurIPS 2017"
    url = "https://arxiv.org/abs/1706.08840"
    idea = "Remove conflicts: project or turn gradients"
    solves_on_host = True

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        weights = on_host(dual_cone_weights, gram, self.preferred_or_mean(state), rounding=eps_of(gram))
        return weights.to(gram.dtype), state
