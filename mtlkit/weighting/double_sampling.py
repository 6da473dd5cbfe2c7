"""Inner products of task gradients from independent samples.

The square of a noisy gradient is too large on average: it holds the square of the noise. Products of
gradients from different samples do not. At feature level a batch holds such samples: each row of the
feature gradients is one sample's, so even rows are paired with odd ones, and a contiguous split of
an even-sized batch over processes has the same pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mtlkit.junction import Step

__all__ = ["cross_gram"]


def cross_gram(gram: Tensor, step: Step | None) -> Tensor:
    """(P, P) products of the tasks' gradients on the even samples with those on the odd samples.

    Scaled so that without noise it is the Gram matrix. It is the Gram matrix itself where there is no
    axis of samples: under ``combine``, with ``wrt=parameters``, and for batches of one sample.
    """
    if step is None or step.over_parameters:
        return gram
    count = len(gram)
    message = gram.new_zeros(count + 1, count)  # the products, then the number of pairs
    for pieces in zip(*(step.grads[k] for k in step.local), strict=True):
        first = pieces[0]
        pairs = len(first) // 2 if first.dim() > 1 else 0
        if pairs == 0:
            continue
        rows = torch.stack([piece[: 2 * pairs] for piece in pieces]).to(gram.dtype)
        even, odd = rows[:, 0::2].flatten(1), rows[:, 1::2].flatten(1)
        present = torch.tensor([step.present.index(k) for k in step.local], device=gram.device)
        message.index_put_(
            (present[:, None], present[None, :]), even @ odd.T * (len(first) / pairs), accumulate=True
        )
        message[count, 0] += pairs
    message = step.all_reduce(message)
    products = message[:count] / (step.world**2 * step.scale.square())
    return torch.where(message[count, 0] > 0, products, gram)
