"""EnCodec's balancer: fixed fractions of the merged gradient's norm."""

from typing import Annotated, Any

from torch import Tensor

from mtlkit.config import Choice, Ge, Gt, LogUniform, Lt, register_method
from mtlkit.engine.gram import norms_of, safe_divide
from mtlkit.method import State, Tasks
from mtlkit.weighting._forms.options import PreferredMerge


@register_method("balancer")
class Balancer(PreferredMerge):
    r"""Give every task a fixed fraction of the merged gradient, whatever the size of its own.

    .. math:: \sum_k R\, \frac{\lambda_k}{\sum_j \lambda_j}\, \frac{G_k}{\langle \|G_k\| \rangle_\beta}

    with the bias-corrected moving average :math:`\langle \|G_k\| \rangle_\beta` of the task's gradient
    norms. So the :math:`\lambda_k` set fractions, not factors of losses with units, and the learning
    rate alone sets the size of a step. A task whose gradients have all been zero takes no part; the
    fractions are relative to the tasks present.

    Update scale: K identical gradients g merge to :math:`R\, g / \|g\|` in the first step.

    Differences: the authors average the norms of the single samples' gradients; here the norm is that of
    the whole batch's gradient, as for all methods, which with B samples of equal norms changes R by
    :math:`\sqrt B`. They balance gradients of the decoder's output and add 1e-12 to the averages.
    LibMTL and TorchJD do not have the method.

    Args:
        preference: numbers :math:`\lambda` of zero or more, one per task or by name; tasks that a
            mapping does not name have 1, as all have by default.
        norm: R, the norm of the merged gradient if all gradients are parallel and of their average norm.
        beta: decay of the moving averages; 0 uses the current norms alone.

    Example:
        >>> import mtlkit, torch
        >>> method = mtlkit.create_method("balancer(preference=[1, 4])", 2)
        >>> method.combine(torch.tensor([[100.0, 0.0], [0.0, 0.02]]))
        tensor([0.2000, 0.8000])
    """

    paper = "Défossez et al., High Fidelity Neural Audio Compression, TMLR 2023"
    url = "https://arxiv.org/abs/2210.13438"
    idea = "Gradient balancing: no task dominates by its size"
    reads_angles = False
    waived_laws = {"single_task": "the gradient of a single task gets the norm R"}
    search_space = {"norm": LogUniform(0.1, 10.0), "beta": Choice(0.9, 0.99, 0.999)}

    def __init__(
        self,
        tasks: Tasks,
        *,
        norm: Annotated[float, Gt(0)] = 1.0,
        beta: Annotated[float, Ge(0), Lt(1)] = 0.999,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.norm = norm
        self.beta = beta
        self.add_state("norms", 0.0)
        self.add_state("seen", 0)

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        seen = state.seen + 1
        norms = self.beta * state.norms + (1 - self.beta) * norms_of(gram)
        averages = norms / (1 - self.beta ** seen.double())
        fractions = safe_divide(state.preferred, state.preferred.sum())
        return self.norm * safe_divide(fractions, averages), state.replace(norms=norms, seen=seen)
