"""Learning-rate annealing: bring all gradients to the size of a reference task's."""

from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from mtlkit.config import Choice, Ge, Le, LogUniform, register_method
from mtlkit.engine.gram import norms_of, safe_divide
from mtlkit.method import State, Tasks
from mtlkit.weighting._forms.options import PrimaryMerge


@register_method("lr_annealing")
class LRAnnealing(PrimaryMerge):
    r"""Scale every gradient to the size of the reference task's, by a moving average of the ratios.

    With ``wrt=parameters`` this is the paper's rule, for a physics-informed network with the residual
    of the equation as reference r:

    .. math:: G_r + \sum_{k \ne r} \lambda_k G_k, \qquad
        \lambda_k \leftarrow (1 - \alpha)\, \lambda_k
        + \alpha\, \frac{\max |G_r|}{\operatorname{mean} |G_k|}

    with maximum and mean over all entries of the gradients. All :math:`\lambda_k` are 1 at first, and a
    step uses the new ones. How many entries a feature's gradient has depends on the batch, and its
    extremes on how the batch is split over processes. So at the features the norms take the place of
    both, :math:`\|G_r\| / \|G_k\|`.

    Where the reference task is absent, or one of the two gradients is zero, :math:`\lambda_k` is
    unchanged.

    Update scale: K identical gradients g merge to K g at the features, and with ``reference=mean``. The
    maximum exceeds the mean, so that :math:`\lambda_k` grows with the number of parameters.

    Differences: the authors' code updates the weights every ten steps, not every step, and takes the
    mean of the layers' means, not of all entries. It keeps 0.9 of the old weights: ``alpha=0.1``. The
    code of ReLoBRaLo's authors has ``reference=mean``. LibMTL and TorchJD do not have the method.

    Args:
        primary: name or index of the reference task; the first by default.
        alpha: weight of the new ratio in the moving average.
        reference: size of the reference gradient with ``wrt=parameters``: ``max`` or ``mean`` of its
            absolute entries.

    Example:
        >>> import mtlkit, torch
        >>> method = mtlkit.create_method("lr_annealing(wrt=parameters, alpha=0.5)", 2)
        >>> method.combine(torch.tensor([[2.0, 8.0], [1.0, 3.0]]))  # ratio 8 / 2, weight (1 + 4) / 2
        tensor([ 4.5000, 15.5000])
    """

    paper = (
        "Wang et al., Understanding and Mitigating Gradient Flow Pathologies in Physics-Informed Neural "
        "Networks, SIAM Journal on Scientific Computing 2021"
    )
    url = "https://arxiv.org/abs/2001.04536"
    idea = "Gradient balancing: no task dominates by its size"
    reads_angles = False
    search_space = {"alpha": LogUniform(0.001, 0.9), "reference": Choice("max", "mean")}

    def __init__(
        self,
        tasks: Tasks,
        *,
        alpha: Annotated[float, Ge(0), Le(1)] = 0.1,
        reference: Literal["max", "mean"] = "max",
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.alpha = alpha
        self.reference = reference
        self.needs_whole_gradients = self.wrt == "parameters"
        self.add_state("lambdas", 1.0)

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        """Average the ratios of norms."""
        norms = norms_of(gram)
        return self._average(norms, norms, state)

    def merge(self, grads: Tensor, state: State) -> tuple[Tensor, State]:
        """Average the paper's own ratios, of maximum and mean."""
        sizes = grads.abs()
        means = sizes.mean(dim=1).double()
        references = sizes.amax(dim=1).double() if self.reference == "max" else means
        weights, state = self._average(references, means, state)
        return weights.to(grads.dtype) @ grads, state

    def _average(self, references: Tensor, sizes: Tensor, state: State) -> tuple[Tensor, State]:
        ratios = safe_divide((state.is_primary * references).sum(), sizes)
        moved = torch.lerp(state.lambdas, ratios, self.alpha)
        lambdas = torch.where((ratios > 0) & (state.is_primary == 0), moved, state.lambdas)
        return lambdas, state.replace(lambdas=lambdas)
