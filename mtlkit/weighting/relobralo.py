"""ReLoBRaLo: relative loss balancing with random lookback."""

from typing import Annotated, Any

import torch
from torch import Tensor

from mtlkit.config import Choice, Ge, Gt, Le, LogUniform, register_method
from mtlkit.engine.randomness import uniform
from mtlkit.method import GradientAggregator, State, Tasks
from mtlkit.weighting._forms.losses import relative_losses, softmax_weights


@register_method("relobralo")
class ReLoBRaLo(GradientAggregator):
    r"""Give more weight to losses that fall more slowly, since the last step and since the first.

    .. math:: \lambda^t = \alpha \big( \rho\, \lambda^{t-1} + (1 - \rho)\, \hat\lambda^{t,0} \big)
        + (1 - \alpha)\, \hat\lambda^{t,t-1}, \qquad
        \hat\lambda^{t,s} = K \operatorname{softmax}_k \Big( \frac{L_k^t}{\tau L_k^s} \Big)

    :math:`\rho` is 1 with probability ``rho`` and 0 otherwise, one draw per step for all tasks, the same
    on every process: where it is 0, the past weights are replaced by those relative to the first losses
    (random lookback). All weights are 1 in the first step, and in the second :math:`\alpha = 0`. A task
    that was absent compares with its own last loss; in its first step its ratios are 1. A reference of
    zero has the ratio 1 too.

    Update scale: in the first step every loss has the factor 1; without absent tasks the factors always
    sum to K.

    Differences: none in the equation; the values in the first two steps are those of the authors' code.
    That code adds 1e-12 to the references, and looks back to the losses of its second step, not of its
    first. LibMTL and TorchJD do not have the method.

    Args:
        alpha: decay of the past weights. The authors' script has 0.999.
        rho: probability of going on from the past weights; 1, the default of the authors' script, never
            looks back.
        temperature: :math:`\tau`; larger values make the weights more equal.
        seed: seed of the draws.

    Example:
        >>> import mtlkit, torch
        >>> method = mtlkit.create_method("relobralo", 2)
        >>> for values in ((4.0, 2.0), (2.0, 2.0)):
        ...     losses = [torch.tensor(value, requires_grad=True) for value in values]
        ...     method.total(losses).backward()
        >>> [round(loss.grad.item(), 3) for loss in losses]  # 2 softmax(0.5, 1)
        [0.755, 1.245]
    """

    paper = (
        "Bischof and Kraus, Multi-Objective Loss Balancing for Physics-Informed Deep Learning, Computer "
        "Methods in Applied Mechanics and Engineering 2025 (arXiv 2110.09813, 2021)"
    )
    url = "https://arxiv.org/abs/2110.09813"
    idea = "Weigh losses: by uncertainty, progress or chance"
    uses_losses = True
    search_space = {
        "alpha": Choice(0.9, 0.95, 0.99, 0.999),
        "rho": Choice(0.9, 0.99, 0.999, 1.0),
        "temperature": LogUniform(0.1, 10.0),
    }

    def __init__(
        self,
        tasks: Tasks,
        *,
        alpha: Annotated[float, Ge(0), Le(1)] = 0.95,
        rho: Annotated[float, Ge(0), Le(1)] = 0.99,
        temperature: Annotated[float, Gt(0)] = 1.0,
        seed: int = 0,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.alpha = alpha
        self.rho = rho
        self.temperature = temperature
        self.seed = seed
        self.add_state("lambdas", 1.0)
        self.add_state("first", 0.0)
        self.add_state("previous", 0.0)
        self.add_state("seen", 0)
        self.add_state("draws", 0, per="all")

    def weigh_losses(self, losses: Tensor, state: State) -> tuple[Tensor, State]:
        exact = losses.double()
        new = state.seen == 0
        first = torch.where(new, exact, state.first)
        past = uniform(self.seed, state.draws, 1) < self.rho
        kept = torch.where(past, state.lambdas, self._balanced(exact, first))
        alpha = torch.where(state.seen == 1, 0.0, self.alpha)
        step = self._balanced(exact, torch.where(new, exact, state.previous))
        lambdas = torch.lerp(step, kept, alpha.double())
        return lambdas, state.replace(
            lambdas=lambdas, first=first, previous=exact, seen=state.seen + 1, draws=state.draws + 1
        )

    def _balanced(self, losses: Tensor, references: Tensor) -> Tensor:
        """Softmax of the ratios, times the number of tasks present."""
        return softmax_weights(relative_losses(losses, references), self.temperature)
