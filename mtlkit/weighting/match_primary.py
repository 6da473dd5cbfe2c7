"""Bring auxiliary gradients to the norm of the main task's: VQGAN's weight and MetaBalance."""

from typing import Annotated, Any

import torch
from torch import Tensor

from mtlkit.config import Choice, Ge, Gt, Le, LogUniform, Lt, Uniform, register_method
from mtlkit.engine.gram import norms_of, safe_divide
from mtlkit.method import State, Tasks
from mtlkit.weighting._forms.options import PrimaryMerge


@register_method("match_primary")
class MatchPrimary(PrimaryMerge):
    r"""Scale the auxiliary gradients to the norm of the main task's, and add them all.

    .. math:: G_p + \sum_{k \ne p} w_k G_k, \qquad
        w_k = c \Big( r \min\Big( \frac{n_p}{n_k},\, w_{max} \Big) + 1 - r \Big)

    with the norms :math:`n_k = \|G_k\|`, or their moving averages (bias-corrected) for ``beta`` above
    zero. By default this is VQGAN's adaptive weight, there of the adversarial loss relative to the
    reconstruction loss. MetaBalance is ``match_primary(relax=0.7, beta=0.9, wrt=parameters,
    groups=tensor)``: the same for every parameter tensor, with averages and a relaxation. Where the main
    task is absent, or its gradients have all been zero, the ratios are 1.

    Update scale: K identical gradients g merge to K g.

    Differences: VQGAN takes the norms at the decoder's last layer; here they are those of the gradients
    that are merged. It adds a constant to the norm in the denominator, 1e-6 in the paper and 1e-4 in the
    code. MetaBalance's averages start at zero, which cancels in the quotient; here they are
    bias-corrected, which differs only for tasks that are absent at times. Its strategies that only
    enlarge or only reduce gradients are not included. LibMTL and TorchJD do not have the method.

    Args:
        primary: name or index of the main task; the first by default.
        strength: c, how large the auxiliary gradients are relative to the main one. It is 0.8 to 1 in
            VQGAN's configurations.
        relax: r, from 0 (plain sum) to 1 (equal norms). MetaBalance has 0.7 in its code.
        beta: decay of the moving averages; 0 uses the current norms alone. MetaBalance has 0.9.
        max_ratio: :math:`w_{max}`; 10,000 in VQGAN's code, no limit in MetaBalance's.

    Example:
        >>> import mtlkit, torch
        >>> method = mtlkit.create_method("match_primary(primary=seg)", ("depth", "seg"))
        >>> method.combine(torch.tensor([[100.0, 0.0], [0.0, 5.0]]))
        tensor([5., 5.])
    """

    paper = (
        "Esser et al., Taming Transformers for High-Resolution Image Synthesis, CVPR 2021; He et al., "
        "MetaBalance: Improving Multi-Task Recommendations via Adapting Gradient Magnitudes of "
        "Auxiliary Tasks, WWW 2022"
    )
    url = "https://arxiv.org/abs/2012.09841"
    year = 2021
    idea = "Gradient balancing: no task dominates by its size"
    reads_angles = False
    search_space = {
        "strength": LogUniform(0.1, 10.0),
        "relax": Uniform(0.1, 1.0),
        "beta": Choice(0.0, 0.9, 0.99),
    }

    def __init__(
        self,
        tasks: Tasks,
        *,
        strength: Annotated[float, Ge(0)] = 1.0,
        relax: Annotated[float, Ge(0), Le(1)] = 1.0,
        beta: Annotated[float, Ge(0), Lt(1)] = 0.0,
        max_ratio: Annotated[float, Gt(0)] = 1e4,
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        self.strength = strength
        self.relax = relax
        self.beta = beta
        self.max_ratio = max_ratio
        self.add_state("norms", 0.0)
        self.add_state("seen", 0)

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        seen = state.seen + 1
        norms = self.beta * state.norms + (1 - self.beta) * norms_of(gram)
        averages = norms / (1 - self.beta ** seen.double())
        main = (state.is_primary * averages).sum()
        ratios = safe_divide(main, averages).clamp(max=self.max_ratio)
        ratios = torch.where(main > 0, ratios, 1.0)
        weights = self.strength * (self.relax * ratios + (1 - self.relax))
        weights = torch.where(state.is_primary == 1, 1.0, weights)
        return weights, state.replace(norms=norms, seen=seen)
