"""One forward pass per task, for tasks that have samples of their own."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import mtlkit
from mtlkit.data import mix
from mtlkit.errors import SpecError, UsageError
from tests.training.run_sources import loaders
from tests.training.small_problem import TASKS, SmallNet, flat, make_loader

pytestmark = pytest.mark.filterwarnings("ignore:no validation set", "ignore:every batch has labels")


@pytest.fixture(autouse=True)
def _double_precision():
    """Rounding must not hide a difference, nor training enlarge it."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def train(mode: str, method: str = "pcgrad(wrt=parameters)", data=None, net=None, steps=6, **options):
    """The trained network, and the number of samples in each of its forward passes."""
    torch.manual_seed(0)
    model = SmallNet(method) if net is None else net()
    optimizer = torch.optim.SGD(mtlkit.param_groups(model, lr=0.1), momentum=0.9)
    trainer = mtlkit.Trainer(
        model, TASKS, optimizer, forward_per_task=mode, progress=False, seed=3, **options
    )
    sizes: list[int] = []
    body = getattr(model, "backbone", model)
    body.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    trainer.fit(mix(loaders(), seed=3) if data is None else data, steps=steps)
    return flat(model), sizes


@pytest.mark.parametrize(
    "method",
    [
        "pcgrad",
        "upgrad",
        "mgda",
        "graddrop",
        "nash_mtl",
        "db_mtl",
        "uw+cagrad",
        "famo(second_pass=True)+aligned_mtl",
    ],
)
def test_a_pass_per_task_gives_the_weights_of_one_mixed_pass(method):
    mixed, whole = train("never", f"{method}(wrt=parameters)")
    apart, parts = train("auto", f"{method}(wrt=parameters)")
    assert len(whole) < len(parts)
    torch.testing.assert_close(apart, mixed, rtol=1e-7, atol=1e-9)


def test_each_pass_has_the_samples_of_one_task():
    assert train("never")[1] == [12] * 6
    assert train("auto")[1] == [9, 3] * 6


def test_batches_of_one_task_are_merged_as_before():
    batches = mix(loaders(), batches="one", seed=3)
    # fairgrad changes the length of a single gradient, so a step that left it as it is would differ
    mixed, whole = train("never", "fairgrad(wrt=parameters)", batches)
    apart, parts = train("auto", "fairgrad(wrt=parameters)", batches)
    assert parts == whole
    assert torch.equal(apart, mixed)


@pytest.mark.parametrize("kind", ["all", "one"])
@pytest.mark.parametrize("method", ["pcgrad(wrt=parameters)", "graddrop(wrt=parameters)"])
def test_accumulated_passes_are_merged_once_per_step(method, kind):
    batches = mix(loaders(), batches=kind, mixing="uniform", seed=3)
    mixed, _ = train("never", method, batches, gradient_accumulation_steps=3)
    apart, _ = train("auto", method, batches, gradient_accumulation_steps=3)
    torch.testing.assert_close(apart, mixed, rtol=1e-7, atol=1e-9)


def test_whole_and_split_batches_may_be_accumulated_into_one_step():
    # some of the batches of 2 have a sample with both labels, others have none
    mixed, whole = train("never", data=apart_by_chance(), gradient_accumulation_steps=4)
    apart, parts = train("auto", data=apart_by_chance(), gradient_accumulation_steps=4)
    assert len(whole) < len(parts) < 2 * len(whole)
    torch.testing.assert_close(apart, mixed, rtol=1e-7, atol=1e-9)


class SpareNet(SmallNet):
    """Has a shared parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__("pcgrad(wrt=parameters)")
        self.spare = nn.Parameter(torch.zeros(3))

    def shared_parameters(self):
        return [*self.backbone.parameters(), self.spare]


def test_an_unused_parameter_does_not_disturb_the_accumulation():
    mixed, _ = train("never", data=apart_by_chance(), net=SpareNet, gradient_accumulation_steps=4)
    apart, _ = train("auto", data=apart_by_chance(), net=SpareNet, gradient_accumulation_steps=4)
    torch.testing.assert_close(apart, mixed, rtol=1e-7, atol=1e-9)


def apart_by_chance() -> DataLoader:
    loader = make_loader(size=60, batch=2, missing=0.6)
    values = loader.dataset.values
    values[loader.dataset.known & (torch.arange(60) % 3 > 0)] = torch.nan
    return loader


def test_samples_with_labels_of_two_tasks_are_split_only_on_demand():
    mixed, whole = train("never", data=make_loader(missing=0.5))
    assert train("auto", data=make_loader(missing=0.5))[1] == whole == [8] * 6
    apart, parts = train("always", data=make_loader(missing=0.5))
    assert len(parts) == 12
    torch.testing.assert_close(apart, mixed, rtol=1e-7, atol=1e-9)


class NormNet(SmallNet):
    def __init__(self) -> None:
        super().__init__("pcgrad(wrt=parameters)")
        self.backbone.insert(1, nn.BatchNorm1d(16))


def test_batchnorm_sees_the_tasks_apart_only_on_demand():
    assert train("auto", net=NormNet)[1] == train("never", net=NormNet)[1] == [12] * 6
    assert train("always", net=NormNet)[1] == [9, 3] * 6


class SyncNet(SmallNet):
    def __init__(self) -> None:
        super().__init__("pcgrad(wrt=parameters)")
        self.backbone.insert(1, nn.SyncBatchNorm(16))


def test_a_pass_per_task_is_refused_with_synchronized_batchnorm():
    with pytest.raises(UsageError, match="SyncBatchNorm"):
        train("always", net=SyncNet)


@pytest.mark.parametrize("method", ["sum", "pcgrad", "rotate+upgrad(wrt=parameters)"])
def test_methods_that_do_not_merge_gradients_of_parameters_alone_have_one_pass(method):
    assert train("always", method)[1] == [12] * 6


class NestedNet(SmallNet):
    def __init__(self) -> None:
        super().__init__("pcgrad(wrt=parameters)")

    def forward(self, inputs):
        return super().forward(torch.cat([inputs["left"], inputs["right"][0]], dim=1))


def nest(batch):
    x, targets = mtlkit.training.collate(batch)
    return {"left": x[:, :2], "right": [x[:, 2:]]}, targets


def test_nested_inputs_are_split():
    plain, sizes = train("auto")
    data = mix(loaders(), seed=3)
    data.collate_fn = nest
    nested, parts = train("auto", data=data, net=NestedNet)
    assert parts == sizes
    torch.testing.assert_close(nested, plain, rtol=1e-7, atol=1e-9)


class WordsNet(SmallNet):
    def __init__(self) -> None:
        super().__init__("pcgrad(wrt=parameters)")

    def forward(self, inputs):
        return super().forward(inputs["x"])


def add_words(batch):
    x, targets = mtlkit.training.collate(batch)
    return {"x": x, "words": "one text for all"}, targets


def test_inputs_that_cannot_be_split_are_left_whole_or_refused():
    data = mix(loaders(), seed=3)
    data.collate_fn = add_words
    assert train("auto", data=data, net=WordsNet)[1] == [12] * 6
    with pytest.raises(UsageError, match="one entry per sample"):
        train("always", data=data, net=WordsNet)


class AuxiliaryNet(SmallNet):
    """Its auxiliary loss is a mean over the samples."""

    def __init__(self) -> None:
        super().__init__("pcgrad(wrt=parameters)")

    def forward(self, x):
        features = self.backbone(x)
        self.term = features.square().mean()
        views = self.method(features)
        return {t.name: self.heads[t.name](z) for t, z in zip(self.tasks, views, strict=True)}

    def auxiliary_loss(self):
        return self.term


def test_an_auxiliary_loss_is_averaged_over_the_passes():
    mixed, _ = train("never", net=AuxiliaryNet)
    apart, _ = train("auto", net=AuxiliaryNet)
    torch.testing.assert_close(apart, mixed, rtol=1e-7, atol=1e-9)


def test_an_unknown_mode_is_refused():
    with pytest.raises(SpecError, match="always"):
        train("allways")
