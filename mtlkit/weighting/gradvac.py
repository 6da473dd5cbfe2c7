"""GradVac: gradient vaccine."""

from typing import Annotated, Any

import torch
from torch import Tensor

from mtlkit.config import Ge, Le, LogUniform, register_method
from mtlkit.engine.gram import cosine_matrix, eps_of, norms_of, safe_divide
from mtlkit.engine.randomness import random_orders
from mtlkit.method import GradientAggregator, State, Tasks


@register_method("gradvac")
class GradVac(GradientAggregator):
    r"""Turn each task's gradient toward the others until they are as aligned as they usually are.

    For every task i, starting from :math:`g = G_i`, and every other task j in random order, with the
    cosine :math:`\phi` of g and :math:`G_j` and its moving average :math:`\hat\phi_{ij}`: if
    :math:`\phi < \hat\phi_{ij}`,

    .. math:: g \leftarrow g + \frac{\|g\| \big(
        \hat\phi_{ij} \sqrt{1 - \phi^2} - \phi \sqrt{1 - \hat\phi_{ij}^2}\big)}
        {\|G_j\| \sqrt{1 - \hat\phi_{ij}^2}}\, G_j

    which makes the cosine :math:`\hat\phi_{ij}`; then, whether it turned or not,
    :math:`\hat\phi_{ij} \leftarrow (1 - \beta)\hat\phi_{ij} + \beta \phi`. The results are added.
    Averages start at zero, so the first step is PCGrad. Only the Gram matrix is needed: all K gradients
    turn at once, as rows of coefficients, in K - 1 rounds. A cosine that is below its average by no
    more than rounding is unchanged, and a zero gradient takes no part.

    Update scale: K identical gradients g merge to K g.

    Differences: the paper keeps averages for every layer or other group of parameters, and treats
    these apart: ``gradvac(wrt=parameters, groups=layer)``. By default there is one gradient per task,
    the paper's ``whole_model``, which is LibMTL's default too. LibMTL and TorchJD, too, move the
    average at every pair (LibMTL 1.1.5 only where it turned a gradient).

    Args:
        beta: weight of the newest cosine. 0.01, the paper's value, remembers some hundred steps; LibMTL
            and TorchJD have 0.5, which remembers two or three.
        seed: seed of the random orders, which are the same on every process.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("gradvac", tasks=2).combine(grads)
        tensor([1., 2.])
    """

    paper = (
        "Wang et al., Gradient Vaccine: Investigating and Improving Multi-task Optimization in "
        "Massively Multilingual Models, ICLR 2021"
    )
    url = "https://arxiv.org/abs/2010.05874"
    idea = "Remove conflicts: project or turn gradients"
    waived_laws = {
        "permutation": "the order of the others is drawn per position (exact for two tasks)",
    }
    search_space = {"beta": LogUniform(0.005, 0.5)}

    def __init__(
        self, tasks: Tasks, *, beta: Annotated[float, Ge(0), Le(1)] = 0.01, seed: int = 0, **common: Any
    ) -> None:
        super().__init__(tasks, **common)
        self.beta = beta
        self.seed = seed
        self.add_state("phi_hat", 0.0, per="pair")
        self.add_state("draws", 0, per="all")

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        norms, unit = norms_of(gram), cosine_matrix(gram)
        turns = random_orders(self.seed, state.draws, len(gram)).T  # (K - 1, K): the other task, by turn
        phi_hat = state.phi_hat  # moving averages of the cosines
        meets = torch.outer(norms, norms) > 0
        target = _cotangents(phi_hat)
        able = meets & target.isfinite()  # no move reaches a cosine of one
        lowest = torch.where(able, _cotangents(phi_hat - eps_of(gram)), -torch.inf)
        # row i belongs to the gradient of task i as it turns, in units of its first norm
        products, squares = unit, unit.diagonal()[:, None]
        moves, seen = torch.zeros_like(unit), torch.zeros_like(unit)
        for others in turns[..., None]:  # (K, 1)
            along = products.gather(1, others)
            rest = torch.addcmul(squares, along, along, value=-1).clamp_min(0)
            across = rest.sqrt()
            seen.scatter_(1, others, safe_divide(along, torch.hypot(along, across)))
            turned = target.gather(1, others) * across
            turned = torch.where(along < lowest.gather(1, others) * across, turned, along)
            move = turned - along
            moves.scatter_(1, others, move)
            products = torch.addcmul(products, move, unit[others[:, 0]])
            squares = torch.addcmul(rest, turned, turned)
        weights = 1 + safe_divide(norms @ moves, norms)
        phi_hat = torch.where(meets, phi_hat.lerp(seen, self.beta), phi_hat)
        return weights, state.replace(phi_hat=phi_hat, draws=state.draws + 1)


def _cotangents(cosines: Tensor) -> Tensor:
    """Return the length along the other gradient for a length of one orthogonal to it."""
    return cosines / (1 - cosines.square()).sqrt()
