"""ConFIG: the conflict-free inverse gradient."""

import torch
from torch import Tensor

from mtlkit.config import register_method
from mtlkit.engine.gram import cosine_matrix, eps_of, norms_of, safe_divide
from mtlkit.method import State
from mtlkit.weighting._forms.options import PreferredMerge


@register_method("config")
class ConFIG(PreferredMerge):
    r"""Follow the direction that has the same positive cosine with all task gradients.

    With the unit gradients :math:`U_k = G_k / \|G_k\|` as rows of U,

    .. math:: v = \frac{U^+ 1}{\|U^+ 1\|}, \qquad
        \text{merged} = \Big( \sum_k \langle G_k, v \rangle \Big) v

    As :math:`U^+ = U^\top (U U^\top)^+`, all of it is in the cosine matrix :math:`C = U U^\top`: with
    :math:`a = C^+ 1` the weights are

    .. math:: w_k = \frac{\sum_i \|G_i\| (C a)_i}{a^\top C a} \frac{a_k}{\|G_k\|}

    so no (K, N) matrix is inverted. A task whose gradient is zero takes no part. Linearly dependent
    gradients are handled in the least-squares sense. Where there is no such direction (two opposite
    gradients), the merged gradient is zero.

    Update scale: K identical gradients g merge to K g.

    Differences: none in the definition. The authors' code and TorchJD have the same defaults (equal
    weights, the summed projections as length); LibMTL does not have the method. Eigenvalues of C below
    its precision count as zero; the others cut at the precision of U, whose singular values are the
    square roots of these eigenvalues.

    Args:
        preference: numbers p of zero or more, one per task or by name, that take the place of 1 in
            :math:`U^+ 1`: the cosines with the task gradients are then proportional to them. Tasks that
            a mapping does not name have 1. Named ``pref_vector`` in TorchJD.

    Example:
        >>> import torch, mtlkit
        >>> grads = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
        >>> mtlkit.create_method("config", tasks=2).combine(grads)
        tensor([0.5000, 1.2071])
    """

    paper = (
        "Liu et al., ConFIG: Towards Conflict-free Training of Physics Informed Neural Networks, "
        "ICLR 2025"
    )
    url = "https://arxiv.org/abs/2408.11104"
    idea = "Remove conflicts: project or turn gradients"

    def weigh(self, gram: Tensor, state: State) -> tuple[Tensor, State]:
        count = len(gram)
        norms = norms_of(gram)
        values, vectors = torch.linalg.eigh(cosine_matrix(gram))
        resolved = values > values[-1] * (8 * count * eps_of(gram))
        p = state.preferred
        products = torch.where(resolved, p @ vectors, 0.0)  # of p with the eigenvectors
        a = vectors @ torch.where(resolved, products / values, 0.0)
        Ca = vectors @ products
        # p is orthogonal to all resolved eigenvectors when the gradients cancel
        found = Ca @ Ca > (1e-10 * p.sum()) ** 2
        length = torch.where(found, norms @ Ca / (a @ Ca), 0.0)
        return (length * safe_divide(a, norms)).to(gram.dtype), state
