"""The counter of synchronizations counts what it should; methods and Trainer do not wait for a GPU."""

from __future__ import annotations

import copy
from unittest import mock

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch import nn

import mtlkit
from mtlkit.cli.catalog import method_facts
from tests.synchronization import DEVICE, DeviceTensor, count_synchronizations, step_of, to_device
from tests.training.small_problem import TASKS, PlainNet, SmallNet, make_loader

CLOSED_FORMS = (
    "sum mean scale pcgrad graddrop gradvac gradnorm imtl_g aligned_mtl config krum trimmed_mean random "
    "uw dwa rlw gls si stch famo cosmos pbi normalize constant imtl_l db_mtl rotate rotograd".split()
)
CHAINS = [
    "pcgrad(wrt=parameters)",
    "mgda(wrt=parameters)",
    "uw+pcgrad",
    "uw+mgda",
    "normalize+rotate+scale",
    "rotate+mgda",
]
NAMES = mtlkit.list_methods()


def matrix() -> torch.Tensor:
    return to_device(torch.tensor([[2.0, 1.0], [1.0, 3.0]]))


def mask() -> torch.Tensor:
    return to_device(torch.tensor([True, False]))


def fill(tensor: torch.Tensor, index, value) -> torch.Tensor:
    tensor[index] = value
    return tensor


SYNCHRONIZING = {
    "item": lambda x: x[0, 0].item(),
    "float": lambda x: float(x.sum()),
    "int": lambda x: int(x.sum()),
    "bool": lambda x: bool((x > 0).all()),
    "branch": lambda x: 1 if x.sum() > 0 else 0,
    "format": lambda x: f"{x.sum():.2f}",
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "numpy": lambda x: x.cpu().numpy(),
    "numpy by force": lambda x: x.numpy(force=True),
    "to the host in another type": lambda x: x.to("cpu", torch.float64),
    "copy_ to the host": lambda x: torch.zeros(2, 2).copy_(x),
    "list of numbers": lambda x: torch.tensor([x[0, 0]]),
    "boolean mask": lambda x: x[mask()],
    "boolean mask filled by a tensor": lambda x: fill(x, mask(), x.sum()),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 1),
    "masked_select": lambda x: x.masked_select(x > 1),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x, x),
    "slice up to a tensor": lambda x: x[: (x[0, 0] > 0).long()],
    "multinomial": lambda x: x.multinomial(1),
    "repeat_interleave": lambda x: x.repeat_interleave(to_device(torch.tensor([1, 2])), dim=0),
    "solve": lambda x: torch.linalg.solve(x, x),
    "inv": lambda x: torch.linalg.inv(x),
    "cholesky": lambda x: torch.linalg.cholesky(x),
}

UPLOADING = {
    "to the device": lambda x: torch.ones(3).to(x.device),
    "to another tensor": lambda x: torch.ones(3, dtype=torch.float64).to(x),
    "from numpy": lambda x: torch.from_numpy(np.ones(3)).to(x.device),
    "list": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "as_tensor of a list": lambda x: torch.as_tensor([1.0, 2.0], device=x.device),
    "new_tensor of a list": lambda x: x.new_tensor([1.0, 2.0]),
    "copy_ to the device": lambda x: x.copy_(torch.ones(2, 2)),
    "row of the host's numbers": lambda x: fill(x, 0, torch.ones(2)),
    "index by a list": lambda x: x[[1, 0]],
    "second index by a list": lambda x: x[:, [1, 0]],
    "index by an array": lambda x: x[np.array([1, 0])],
    "index by the host's tensor": lambda x: x[torch.tensor([1, 0])],
    "filled at a list": lambda x: fill(x, [1, 0], 0.0),
}

WITHOUT = {
    "arithmetic": lambda x: ((2 * x + 1) @ x.T / x.sum()).sqrt().mean(),
    "a number of the host": lambda x: x * torch.tensor(2.0),
    "new tensors": lambda x: x.new_ones(2) + torch.zeros(2, device=x.device) + torch.full_like(x, 3.0),
    "random numbers": lambda x: torch.rand(2, device=x.device) + torch.randn_like(x),
    "index": lambda x: x[torch.arange(2, device=x.device)] + x[0] + x[:, 1:] + x[..., None].squeeze(-1),
    "where": lambda x: torch.where(x > 1, x, 0.0) + x.masked_fill(x > 1, 0.0),
    "boolean mask filled by a number": lambda x: fill(x, mask(), 0.0),
    "number": lambda x: fill(x, (0, 0), 1.0),
    "row of the device's numbers": lambda x: fill(x, 0, x[1]),
    "sort": lambda x: x.sort(descending=True).values + x.argsort() + x.median() + x.quantile(0.5),
    "another type": lambda x: x.double().to(torch.int64).float(),
    "stack": lambda x: torch.stack([x, x]).unbind(0),
    "in place": lambda x: x.mul_(2).unsqueeze_(0).squeeze_(0).add_(x),
    "solve without a check": lambda x: torch.linalg.solve_ex(x, x),
    "as_tensor of a tensor": lambda x: torch.as_tensor(x, device=x.device),
    "work on the host": lambda x: torch.tensor([1.0, 2.0])[[True, False]].tolist(),
    "autocast": lambda x: (
        torch.autocast(x.device.type, enabled=False).__enter__().__exit__(None, None, None)
    ),
}


def counts(function, *args) -> tuple[int, int, int]:
    with count_synchronizations() as counted:
        function(*args)
    return counted.synchronizations, counted.uploads, counted.decompositions


@pytest.mark.parametrize("name", SYNCHRONIZING)
def test_a_synchronization_is_counted_once(name):
    assert counts(SYNCHRONIZING[name], matrix()) == (1, 0, 0)


@pytest.mark.parametrize("name", UPLOADING)
def test_an_upload_is_counted_once(name):
    assert counts(UPLOADING[name], matrix()) == (0, 1, 0)


@pytest.mark.parametrize("name", WITHOUT)
def test_work_on_the_device_is_not_counted(name):
    assert counts(WITHOUT[name], matrix()) == (0, 0, 0)


@pytest.mark.parametrize("decompose", [torch.linalg.eigh, torch.linalg.svd, torch.linalg.pinv])
def test_a_decomposition_is_counted_apart(decompose):
    assert counts(decompose, matrix()) == (0, 0, 1)


@pytest.mark.parametrize("cases", [SYNCHRONIZING, UPLOADING, WITHOUT])
def test_the_numbers_are_those_of_the_cpu(cases):
    """Every snippet gives on the device what it gives on the CPU, where no random number is in it."""
    for name in cases.keys() - {"multinomial", "random numbers", "list of numbers", "where"}:
        with count_synchronizations():
            found = cases[name](matrix())
            found = found.cpu() if isinstance(found, torch.Tensor) else found
        with mock.patch(f"{__name__}.to_device", lambda tensor: tensor):
            expected = cases[name](matrix())
        if isinstance(expected, torch.Tensor):
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
        elif isinstance(expected, float | int | str | list):
            assert found == expected


def test_tensors_of_two_devices_do_not_mix():
    with count_synchronizations(), pytest.raises(RuntimeError, match="two devices"):
        matrix() + torch.ones(2, 2)


def test_a_device_tensor_is_not_read_by_accident():
    with count_synchronizations():
        assert not matrix().is_cpu
        with pytest.raises(TypeError, match="host"):
            matrix().numpy()


def test_a_tensor_that_was_made_outside_is_refused():
    outside = torch.zeros(2, device=DEVICE)
    with count_synchronizations(), pytest.raises(RuntimeError, match="outside"):
        outside + 1


def test_a_place_names_the_line_of_mtlkit():
    with count_synchronizations() as counted:
        mtlkit.create_method("mgda", 2).weights(matrix())
    assert counted.synchronizations
    assert all("mtlkit/weighting/mgda.py:" in place for place in counted.places)


def test_a_place_outside_of_mtlkit_names_the_caller():
    with count_synchronizations() as counted:
        matrix().sum().item()
    (place,) = counted.places
    assert place.startswith("synchronization (_local_scalar_dense) at test_synchronization.py:")
    assert place in str(counted)


class Doubled(torch.autograd.Function):
    """Counts one synchronization in its backward."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.tensor([2.0], device=gradient.device) * float(gradient.sum() * 0 + 1)


def test_the_backward_of_an_autograd_function_is_counted():
    x = to_device(torch.ones(3, requires_grad=True))
    with count_synchronizations() as counted:
        Doubled.apply(x).sum().backward()
        (again,) = torch.autograd.grad(Doubled.apply(x).sum(), x)
        assert x.grad.tolist() == again.tolist() == [2.0, 2.0, 2.0]
    assert counted.uploads == 2
    assert counted.synchronizations == 2 + 2  # two backwards, two lists


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_training_on_the_device_is_training_on_the_cpu(optimizer, foreach):
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)
    )
    images = torch.randn(8, 1, 4, 4)
    on_device = to_device(copy.deepcopy(network))
    assert all(isinstance(parameter, nn.Parameter) for parameter in on_device.parameters())
    assert all(isinstance(tensor, DeviceTensor) for tensor in on_device.state_dict().values())
    with count_synchronizations() as counted:
        for model, inputs in ((network, images), (on_device, to_device(images))):
            stepper = optimizer(model.parameters(), lr=0.1, foreach=foreach)
            for _ in range(3):
                model(inputs).square().mean().backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                stepper.step()
                stepper.zero_grad()
    assert (counted.synchronizations, counted.uploads) == (0, 0), str(counted)
    with count_synchronizations():
        for here, there in zip(
            network.state_dict().values(), on_device.state_dict().values(), strict=True
        ):
            torch.testing.assert_close(there.cpu(), here, rtol=0, atol=0)


def is_closed_form(spec: str) -> bool:
    method = mtlkit.create_method(spec, 3, feature_dim=6, shared=nn.Linear(4, 6))
    return not any(part.solves_on_host for part in method.parts)


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_a_closed_form_is_declared_as_such(name):
    assert is_closed_form(name)


@pytest.mark.parametrize("spec", [*NAMES, *CHAINS])
def test_a_step_of_a_closed_form_waits_nowhere_and_of_a_solver_once(spec):
    counted = step_of(spec)
    if is_closed_form(spec):
        assert (counted.synchronizations, counted.uploads) == (0, 0), str(counted)
        assert counted.decompositions <= 1, str(counted)
    else:
        assert counted.synchronizations == 1, str(counted)
        assert counted.uploads <= 1, str(counted)


@pytest.mark.parametrize("name", NAMES)
def test_the_catalog_says_which_methods_wait_for_a_gpu(name):
    counted, cost = step_of(name), method_facts(name).cost
    assert counted.synchronizations == cost.count("solver")
    assert counted.decompositions == cost.count("eigenvalues")


@pytest.mark.parametrize("spec", [*NAMES, *CHAINS])
def test_an_absent_task_costs_no_synchronization(spec):
    counted = step_of(spec, absent=True)
    assert counted.synchronizations == (0 if is_closed_form(spec) else 1), str(counted)


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("spec", ["sum", "pcgrad", "rotograd", None])
def test_the_trainer_adds_no_synchronization_to_steps_that_do_not_log(spec, missing):
    """A longer run waits as often as a short one: where it starts and in the last line of its log.

    None is a network without a method.
    """
    with mock.patch.object(Accelerator, "device", DEVICE):
        torch.manual_seed(0)
        model = to_device(SmallNet(spec) if spec else PlainNet())
        optimizer = torch.optim.Adam(mtlkit.param_groups(model, lr=0.01))
        loader = make_loader(size=80, batch=8, missing=missing)
        with count_synchronizations():
            trainer = mtlkit.Trainer(
                model,
                TASKS,
                optimizer,
                Accelerator(),
                logging_steps=1000,
                monitor_steps=0,
                progress=False,
            )
            trainer.fit(loader, steps=2)
        with count_synchronizations() as short:
            trainer.fit(loader, steps=4)
        with count_synchronizations() as long:
            trainer.fit(loader, steps=9)
    assert long.synchronizations == short.synchronizations, str(long)
    if not missing:  # inputs and two targets of three more batches
        assert long.uploads == short.uploads + 3 * 3, str(long)
