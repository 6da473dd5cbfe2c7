"""Groups of shared parameters: each has its own Gram matrix, its own state and its own weights."""

import copy

import pytest
import torch
from torch import nn

import mtlkit
from mtlkit.errors import SpecError, UsageError

SPECS = ["pcgrad", "gradvac", "mgda", "imtl_g", "gradnorm", "graddrop", "scale"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4)).double()
        self.heads = nn.ModuleList(nn.Linear(4, 1).double() for _ in range(3))

    def losses(self, x, features=None):
        views = [self.backbone(x)] * 3 if features is None else features
        return [
            (head(z)[:, 0] - torch.sin(x.sum(1) * (k + 1))).square().mean()
            for k, (head, z) in enumerate(zip(self.heads, views, strict=True))
        ]


def rows_of(net, x, tensors):
    return [torch.autograd.grad(loss, tensors, retain_graph=True) for loss in net.losses(x)]


@pytest.mark.parametrize("fork", [False, True])
@pytest.mark.parametrize("spec", SPECS)
def test_every_group_is_merged_as_if_it_were_alone(spec, fork):
    net = Net()
    groups = {"first": net.backbone[0], "last": net.backbone[2]}
    method = mtlkit.create_method(spec, 3, wrt="parameters", shared=groups)
    alone = {name: mtlkit.create_method(spec, 3, wrt="parameters") for name in groups}
    for step in range(3):
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(step)).double()
        losses = net.losses(x)
        expected = {}
        for name, module in groups.items():
            tensors = list(module.parameters())
            rows = torch.stack(
                [torch.cat([g.flatten() for g in row]) for row in rows_of(net, x, tensors)]
            )
            expected[name] = alone[name].combine(rows, torch.stack(losses).detach())
        net.zero_grad()
        features = method(net.backbone(x)) if fork else None
        method.total(net.losses(x, features)).backward()
        for name, module in groups.items():
            found = torch.cat([p.grad.flatten() for p in module.parameters()])
            torch.testing.assert_close(found, expected[name])
            for kept, own in zip(method.stats.groups[name].norms, alone[name].stats.norms, strict=True):
                torch.testing.assert_close(kept, own)


@pytest.mark.parametrize("spec", ["pcgrad", "graddrop"])
def test_one_group_is_merged_as_no_groups_are_whatever_the_order_of_its_layers(spec):
    class Backwards(nn.Module):
        """Its first layer is registered last, and its gradients have the shapes of the other's."""

        def __init__(self):
            super().__init__()
            self.last, self.first = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.last(self.first(x).tanh())

    backbone, heads, x = Backwards(), [nn.Linear(4, 1) for _ in range(3)], torch.randn(5, 4)
    gradients = []
    for shared in (backbone, {"all": [*backbone.parameters()] * 2}):
        backbone.zero_grad()
        method = mtlkit.create_method(spec, 3, wrt="parameters", shared=shared)
        views = method(backbone(x))
        method.total(
            [(h(z) - k).square().mean() for k, (h, z) in enumerate(zip(heads, views, strict=True))]
        ).backward()
        gradients.append([parameter.grad for parameter in backbone.parameters()])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("fork", [False, True])
def test_a_tied_weight_is_merged_once_with_the_first_of_its_groups(fork):
    encoder, decoder = nn.Linear(4, 4), nn.Linear(4, 4)
    decoder.weight = encoder.weight
    heads, x = [nn.Linear(4, 1) for _ in range(2)], torch.randn(6, 4)
    gradients = []
    for last in (decoder, [decoder.bias]):
        encoder.zero_grad()
        decoder.zero_grad()
        groups = {"encoder": encoder, "decoder": last}
        method = mtlkit.create_method("mgda(wrt=parameters)", 2, shared=groups)
        z = decoder(encoder(x).tanh())
        views = method(z) if fork else [z, z]
        method.total(
            [(h(v) - k).square().mean() for k, (h, v) in enumerate(zip(heads, views, strict=True))]
        ).backward()
        gradients.append([encoder.weight.grad, encoder.bias.grad, decoder.bias.grad])
    torch.testing.assert_close(*gradients)


def test_layers_and_tensors_are_found_by_their_names():
    net = Net()
    layers = mtlkit.create_method("gradvac(wrt=parameters, groups=layer)", 3, shared=net.backbone)
    tensors = mtlkit.create_method("gradvac(wrt=parameters, groups=tensor)", 3, shared=net.backbone)
    x = torch.randn(4, 3).double()
    for method in (layers, tensors):
        method.total(net.losses(x)).backward()
    assert list(layers.stats.groups) == ["0", "2"]
    assert list(tensors.stats.groups) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_statistics_over_all_parameters_add_up_those_of_the_groups():
    net = Net()
    x = torch.randn(4, 3).double()
    whole = mtlkit.create_method("sum", 3, wrt="parameters", shared={"all": net.backbone})
    method = mtlkit.create_method("mean", 3, wrt="parameters", groups="layer", shared=net.backbone)
    assert whole.is_sum
    rows = torch.stack(
        [
            torch.cat([g.flatten() for g in row])
            for row in rows_of(net, x, list(net.backbone.parameters()))
        ]
    )
    method.total(net.losses(x)).backward()
    torch.testing.assert_close(method.stats.norms, rows.norm(dim=1).float())
    merged = rows.mean(dim=0)
    cosines = (rows @ merged) / rows.norm(dim=1) / merged.norm()
    torch.testing.assert_close(method.stats.update_cosines, cosines.float())


def test_state_of_every_group_is_saved_and_training_goes_on_bit_for_bit():
    net = Net()
    method = mtlkit.create_method("gradvac(wrt=parameters, groups=layer)", 3, shared=net.backbone)
    batches = [torch.randn(4, 3, generator=torch.Generator().manual_seed(s)).double() for s in range(4)]
    for x in batches[:2]:
        method.total(net.losses(x)).backward()
    twin = copy.deepcopy(net)
    other = mtlkit.create_method("gradvac(wrt=parameters, groups=layer)", 3, shared=twin.backbone)
    other.load_state_dict(method.state_dict())
    for x in batches[2:]:
        for each, own in ((net, method), (twin, other)):
            each.zero_grad()
            own.total(each.losses(x)).backward()
        for one, two in zip(net.parameters(), twin.parameters(), strict=True):
            assert torch.equal(one.grad, two.grad)


def test_groups_keep_their_state_when_other_tensors_take_the_same_names():
    net = Net()
    method = mtlkit.create_method("gradvac(wrt=parameters, groups=layer)", 3, shared=net.backbone)
    method.total(net.losses(torch.randn(4, 3).double())).backward()
    known = copy.deepcopy(method.state_dict())
    method.set_shared(copy.deepcopy(net.backbone))
    for name, value in method.state_dict().items():
        assert torch.equal(value, known[name])
    assert known["copies.0.draws"] == 1


@pytest.mark.parametrize("spec", ["gradnorm", "pcgrad", "graddrop"])
def test_a_batch_without_any_label_changes_nothing_in_any_group(spec):
    net = Net()
    method = mtlkit.create_method(f"{spec}(wrt=parameters, groups=layer)", 3, shared=net.backbone)
    x = torch.randn(5, 3).double()
    method.total(net.losses(x, method(net.backbone(x)))).backward()
    before = copy.deepcopy(method.state_dict())
    net.zero_grad()
    method.zero_grad()
    method(net.backbone(x))
    method.total([None, None, None]).backward()
    assert all(p.grad is None for p in net.parameters())
    assert all(p.grad is None or not p.grad.any() for p in method.parameters())
    assert method.stats is None
    for name, value in method.state_dict().items():
        assert torch.equal(value, before[name])


def test_statistics_have_no_group_of_the_step_before():
    net = Net()
    groups = {"first": net.backbone[0], "last": net.backbone[2]}
    method = mtlkit.create_method("mean", 3, wrt="parameters", shared=groups)
    x = torch.randn(5, 3).double()
    method.total(net.losses(x)).backward()
    assert list(method.stats.groups) == ["first", "last"]
    hidden = net.backbone[0](x).detach()  # reaches the last group only
    method.total([net.backbone[2](hidden).square().mean() * k for k in (1, 2, 3)]).backward()
    assert list(method.stats.groups) == ["last"]


def test_an_architecture_names_its_layers():
    net = mtlkit.create_architecture(
        "hard_sharing(backbone=mlp(8, 4, inputs=3))",
        {"a": 1, "b": 1},
        method="gradvac(wrt=parameters, groups=layer)",
    )
    x = torch.randn(6, 3)
    predictions = net(x)
    net.method.total({name: value.square().mean() for name, value in predictions.items()}).backward()
    assert len(net.method.stats.groups) == 2


def test_groups_without_names_or_without_parameters_are_refused():
    with pytest.raises(SpecError, match="wrt=parameters"):
        mtlkit.create_method("pcgrad(groups=layer)", 2)
    with pytest.raises(SpecError, match="layers' names"):
        mtlkit.create_method("pcgrad(wrt=parameters, groups=layer)", 3, shared=list(Net().parameters()))
    net = Net()
    method = mtlkit.create_method("pcgrad(wrt=parameters, groups=layer)", 3)
    with pytest.raises(UsageError, match=r"shared=net\.backbone"):
        method.total(net.losses(torch.randn(4, 3).double()))
