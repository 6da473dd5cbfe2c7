"""The networks of the field's setups."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional

import mtlkit
from mtlkit.config.plugins import load_plugin
from mtlkit.errors import SpecError
from mtlkit.testing import check_architecture

networks = load_plugin(str(Path(__file__).parents[2] / "benchmarks/field/networks.py"))


def molecules(*sizes, columns=4):
    """Random molecules of so many atoms."""
    random = torch.Generator().manual_seed(0)
    made = torch.zeros(len(sizes), 29, columns)
    for row, size in zip(made, sizes, strict=True):
        elements = torch.tensor(networks._ELEMENTS)
        row[:size, 0] = elements[torch.randint(5, (size,), generator=random)].float()
        row[:size, 1:4] = torch.randn(size, 3, generator=random)
        if columns > 4:
            row[:size, 4:9] = torch.randint(3, (size, 5), generator=random).float()
            kinds = torch.randint(5, (size, size), generator=random).float().triu(1)
            row[:size, 9 : 9 + size] = kinds + kinds.T
    return made


@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")
@pytest.mark.parametrize("columns", [4, 38])
def test_messages_and_pooling_are_those_of_pyg(columns):
    from torch_geometric.nn import NNConv, Set2Set

    torch.manual_seed(0)
    net = mtlkit.create_architecture("message_passing(width=6, hidden=5)", {"u0": 1, "u": 1}).double()
    lift = torch.nn.Sequential(net.pairs, torch.nn.ReLU(), net.matrices)
    conv = NNConv(6, 6, lift, aggr="mean").double()
    pool = Set2Set(6, processing_steps=3).double()
    with torch.no_grad():
        # NNConv starts its network anew; give all parameters the values of ours afterward
        conv.lin.weight.copy_(net.keep.weight)
        conv.bias.copy_(net.keep.bias)
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(pool.lstm, f"{name}_l0").copy_(getattr(net.pool.cell, name))
    batch = molecules(5, 1, 29, 3, columns=columns).double()
    expected = []
    for molecule in batch:
        rows = molecule[molecule[:, 0] > 0]
        full = functional.pad(rows, (0, 38 - columns))
        elements = rows[:, :1] == torch.tensor(networks._ELEMENTS)
        atoms = net.embed(torch.cat([elements, rows[:, :1], full[:, 4:9]], dim=1)).relu()
        edges = (1 - torch.eye(len(rows))).nonzero().T
        start, end = edges
        distance = (rows[start, 1:4] - rows[end, 1:4]).norm(dim=1, keepdim=True)
        kind = full[start, 9 + end, None] == torch.arange(1, 5)
        for _ in range(3):
            messages = conv(atoms, edges, torch.cat([kind, distance], dim=1)).relu()
            atoms = net.update(messages, atoms)
        pooled = pool(atoms, torch.zeros(len(atoms), dtype=torch.long), dim_size=1)
        expected.append(net.join(pooled).relu())
    assert torch.allclose(net.encode(batch), torch.cat(expected), atol=1e-12)


def test_the_order_of_atoms_and_the_place_of_the_molecule_do_not_matter():
    net = mtlkit.create_architecture("message_passing(width=8, hidden=4)", ["u0"])
    batch = molecules(7, 12)
    moved = batch.clone()
    moved[0, :7] = moved[0, torch.randperm(7)]
    moved[..., 1:4] += (moved[..., :1] > 0) * torch.tensor([1.0, -2.0, 3.0])
    assert torch.allclose(net(batch)["u0"], net(moved)["u0"], atol=1e-5)


def test_the_network_of_qm9_obeys_the_laws_of_architectures():
    check_architecture("message_passing(width=8, hidden=4)", inputs=molecules(5, 4, 3, 2))


def test_segnet_with_attention_has_the_size_of_the_fields_and_predicts_maps():
    tasks = {"segmentation": 13, "depth": 1, "normals": 3}
    net = mtlkit.create_architecture("segnet_mtan", tasks)
    # counted by hand from the layers of the field's SegNetMtan
    assert sum(parameter.numel() for parameter in net.parameters()) == 44_229_073
    small = mtlkit.create_architecture(
        "segnet_mtan(width=0.0625)", tasks, method="pcgrad(wrt=parameters)"
    )
    found = small(torch.randn(2, 3, 40, 72))
    assert {name: tuple(p.shape[1:]) for name, p in found.items()} == {
        name: (size, 40, 72) for name, size in tasks.items()
    }
    small.method.total({name: p.square().mean() for name, p in found.items()}).backward()
    assert all(parameter.grad is not None for parameter in small.parameters())
    own = {id(p) for task in tasks for p in small.head(task).parameters()}
    assert {id(p) for p in small.shared_parameters()} == {id(p) for p in small.parameters()} - own


def test_a_method_that_forks_features_is_refused_where_tasks_share_more():
    with pytest.raises(SpecError, match="wrt=parameters"):
        mtlkit.create_architecture("segnet_mtan(width=0.0625)", ["a", "b"], method="pcgrad")


def test_the_network_of_celeba_has_seven_convolutions_and_two_linear_layers():
    net = mtlkit.create_architecture("celeba_net", 40)
    kinds = [type(layer).__name__ for layer in net.backbone]
    assert (kinds.count("Conv2d"), kinds.count("Linear"), kinds.count("BatchNorm2d")) == (7, 2, 7)
    sizes = [layer.out_channels for layer in net.backbone if hasattr(layer, "out_channels")]
    assert sizes == [64, 128, 128, 256, 256, 512, 512]
    check_architecture("celeba_net(width=0.05)", inputs=torch.randn(6, 3, 16, 16))
