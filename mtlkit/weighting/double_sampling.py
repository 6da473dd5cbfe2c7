"""Inner products of task gradients from independent samples.

The square of a noisy gradient is too large on average: it holds the square of the noise. Products of
gradients from different samples do not. At feature level a batch holds such samples: each row of the
feature gradients is one sample's, so even rows are paired with odd ones, and a contiguous split of
an even-sized batch over processes has the same pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mtlkit.host import Matrix, as_array
from mtlkit.junction import Step

__all__ = ["cross_gram"]


def cross_gram(gram: Matrix, step: Step | None) -> Matrix:
    """(P, P) products of the tasks' gradients on the even samples with those on the odd samples.

    Scaled so that without noise it is the Gram matrix. It is the Gram matrix itself where there is no
    axis of samples: under ``combine``, with ``wrt=parameters``, and for batches of one sample.
    """
    if step is None or step.over_parameters:
        return gram
    tensors = list(zip(*(step.grads[k] for k in step.local), strict=True))
    pairs = [_pairs(of_tasks[0]) for of_tasks in tensors]
    if step.group is None and not any(pairs):
        return gram
    count = len(gram)
    message = step.gram.new_zeros(count + 1, count)  # the products, then the number of pairs
    present = torch.tensor([step.present.index(k) for k in step.local], device=message.device)
    for of_tasks, some in zip(tensors, pairs, strict=True):
        if some == 0:
            continue
        rows = torch.stack([tensor[: 2 * some] for tensor in of_tasks]).to(message.dtype)
        even, odd = rows[:, 0::2].flatten(1), rows[:, 1::2].flatten(1)
        products = even @ odd.T * (len(of_tasks[0]) / some)
        message.index_put_((present[:, None], present[None, :]), products, accumulate=True)
        message[count, 0] += some
    message = step.all_reduce(message)
    message[:count] /= step.world**2 * step.scale.square()
    found = as_array(message)
    return found[:count] if found[count, 0] > 0 else gram


def _pairs(tensor: Tensor | None) -> int:
    """How many even samples have an odd one next to them; no axis of samples is none."""
    return len(tensor) // 2 if tensor is not None and tensor.dim() > 1 else 0
