"""IMTL-G: a merged gradient with equal projections on all task gradients."""

import torch
from torch import Tensor

from mtlkit.config import register_method
from mtlkit.engine.gram import cosine_matrix, eps_of, norms_of, safe_divide
from mtlkit.method import GradientAggregator, State


@register_method("imtl_g")
class IMTLG(GradientAggregator):
    r"""Find the affine combination whose projections on all unit task gradients are equal.

    .. math:: \left\langle \sum_i w_i G_i,\ \frac{G_k}{\|G_k\|} \right\rangle
        \text{ equal for all } k, \qquad \sum_k w_k = 1

    With the cosine matrix C this is :math:`C v = 1`, :math:`w_k \propto v_k / \|G_k\|`. The weights may
    be negative. A task whose gradient is zero takes no part. Where the gradients cancel so that the
    weights sum to zero (two opposite gradients), the merged gradient is zero.

    Update scale: K identical gradients g merge to g.

    Differences: none from the paper where the gradients are independent. Where they are not, its system
    is singular; the pseudo-inverse of C is used, so that identical tasks share their weight. LibMTL
    inverts the singular matrix and fails. TorchJD takes the pseudo-inverse of the Gram matrix, so that
    its weights of dependent gradients change with their lengths, and returns zero where the solution
    sums to less than 1e-12.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("imtl_g", tasks=2).combine(grads)
        tensor([0.2426, 0.5858])
    """

    paper = "Liu et al., Towards Impartial Multi-task Learning, ICLR 2021"
    url = "https://openreview.net/forum?id=IMPnRXEWpvr"
    idea = "Gradient balancing: no task dominates by its size"

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        norms = norms_of(gram)
        values, vectors = torch.linalg.eigh(cosine_matrix(gram))
        rounding = 8 * len(gram) * eps_of(gram)
        inverse = torch.where(values > rounding * values[-1], values.reciprocal(), 0.0)
        solution = vectors @ (inverse * vectors.sum(dim=0))
        # gradients that cancel each other leave rounding errors, which must not be scaled up
        solution = torch.where(solution.abs() <= rounding * inverse.max(), 0.0, solution)
        # the largest norm makes the quotients of order one; it cancels in the normalization
        weights = safe_divide(solution * norms.max(), norms)
        total = weights.sum()
        canceled = total.abs() <= rounding * weights.abs().max()
        return torch.where(canceled, 0.0, weights / total).to(gram.dtype), state
