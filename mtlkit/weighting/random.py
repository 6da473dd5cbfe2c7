"""Random gradient weighting."""

from typing import Any

from torch import Tensor

from mtlkit.config import register_method
from mtlkit.engine.randomness import normal
from mtlkit.method import GradientAggregator, State, Tasks


@register_method("random")
class Random(GradientAggregator):
    r"""Draw new weights of the gradients at every step.

    .. math:: w = \operatorname{softmax}(z), \qquad z_k \sim N(0, 1)

    This is RGW of the paper; its RLW, random weights of the losses, is ``rlw``. Every process draws the
    same weights, and a step that is not finite is drawn again.

    Update scale: K identical gradients g merge to g.

    Differences: none from the paper. LibMTL's RGW and TorchJD's Random are the same.

    Args:
        seed: seed of the draws.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("random", tasks=2).combine(grads)
        tensor([1.5662, 0.1446])
    """

    paper = (
        "Lin et al., Reasonable Effectiveness of Random Weighting: A Litmus Test for Multi-Task "
        "Learning, TMLR 2022"
    )
    url = "https://arxiv.org/abs/2111.10603"
    idea = "Robust against outliers, and references"
    waived_laws = {"permutation": "the weights are drawn per position"}
    reads_gram = False

    def __init__(self, tasks: Tasks, *, seed: int = 0, **common: Any) -> None:
        super().__init__(tasks, **common)
        self.seed = seed
        self.add_state("draws", 0, per="all")

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        weights = normal(self.seed, state.draws, len(gram)).double().softmax(dim=0)
        return weights, state.replace(draws=state.draws + 1)
