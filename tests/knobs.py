"""Where and in which precision the laws run: MTLKIT_TEST_DEVICE and MTLKIT_TEST_DTYPE."""

from __future__ import annotations

import os

import torch

__all__ = ["DEVICE", "DTYPE"]


def choose(variable: str, default: str, accepted: tuple[str, ...]) -> str:
    """Value of an environment variable, which must be one of those accepted."""
    value = os.environ.get(variable, default)
    if value not in accepted:
        raise ValueError(f"{variable} is {value!r}; set it to one of {', '.join(accepted)}")
    return value


DEVICE = torch.device(choose("MTLKIT_TEST_DEVICE", "cpu", ("cpu", "cuda")))
DTYPE: torch.dtype = getattr(torch, choose("MTLKIT_TEST_DTYPE", "float64", ("float32", "float64")))
