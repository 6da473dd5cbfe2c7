"""With gradients of parameters, micro-batches are merged once per optimizer step."""

import pytest
import torch

from tests.training.small_problem import make_loader, make_trainer


def weights_after(spec: str, batch: int, accumulate: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    trainer = make_trainer(spec, gradient_accumulation_steps=accumulate)
    trainer.fit(make_loader(size=40, batch=batch, shuffle=False), epochs=2)
    return [p.detach().clone() for p in trainer.model.parameters()]


@pytest.mark.filterwarnings("ignore:no validation set")
@pytest.mark.parametrize("spec", ["pcgrad", "mgda", "graddrop", "gradvac"])
def test_micro_batches_equal_one_large_batch(spec):
    whole = weights_after(f"{spec}(wrt=parameters)", 20, 1)
    parts = weights_after(f"{spec}(wrt=parameters)", 10, 2)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
