"""Networks whose shared weights depend on a preference: theta_0 + sum_k lambda_k Delta_k."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.data import DataLoader

import mtlkit
from mtlkit.errors import MtlkitError, SpecError, UsageError
from tests.architectures.cases import CASES

SPEC = "hard_sharing(backbone=mlp(16, 8, inputs=4), heads=linear)"
TASKS = {"seg": 3, "depth": 1}


def make(preference: str = "lora(rank=2)", **options):
    torch.manual_seed(0)
    return mtlkit.create_architecture(SPEC, TASKS, preference=preference, **options)


def blended(net) -> list[nn.Module]:
    return [module for module in net.backbone.modules() if parametrize.is_parametrized(module)]


def shake(net) -> None:
    """Give every difference other values than zero."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith((".delta", ".up")):
                parameter.normal_()


def close(first, second) -> bool:
    return all(torch.allclose(first[task], second[task], atol=1e-5) for task in first)


@pytest.mark.parametrize("kind", ["full", "lora(rank=2)"])
def test_the_weights_are_theta_0_plus_the_preferred_sum_of_the_differences(kind) -> None:
    net = make(kind).eval()
    shake(net)
    net.set_preference({"seg": 3, "depth": 1})
    for layer in blended(net):
        step = layer.parametrizations.weight
        if kind == "full":
            deltas = step[0].delta.view(2, *layer.weight.shape)
        else:
            deltas = [step[0].up[:, k] @ step[0].down[k] for k in range(2)]
        by_hand = step.original + 0.75 * deltas[0] + 0.25 * deltas[1]
        assert torch.allclose(layer.weight, by_hand, atol=1e-6)
        step = layer.parametrizations.bias
        by_hand = step.original + 0.75 * step[0].delta[0] + 0.25 * step[0].delta[1]
        assert torch.allclose(layer.bias, by_hand, atol=1e-6)


def test_a_preference_changes_the_outputs_and_is_divided_by_its_sum() -> None:
    net, x = make().eval(), torch.randn(5, 4)
    shake(net)
    net.set_preference({"seg": 2, "depth": 2})
    assert net.preference == {"seg": 0.5, "depth": 0.5}
    equal = net(x)
    net.set_preference({"seg": 1})
    assert net.preference == {"seg": 1.0, "depth": 0.0}
    assert not close(net(x), equal)


@pytest.mark.parametrize("kind", ["full", "lora(rank=4)"])
def test_at_first_the_network_is_that_without_preferences(kind) -> None:
    x = torch.randn(5, 4)
    torch.manual_seed(0)
    plain = mtlkit.create_architecture(SPEC, TASKS)
    assert close(plain(x), make(kind)(x))


def test_the_rank_is_that_of_the_differences_and_no_larger_than_the_weight() -> None:
    net = make("lora(rank=3)")
    shake(net)
    ranks = []
    for layer in blended(net):
        step = layer.parametrizations.weight[0]
        ranks.append(int(torch.linalg.matrix_rank(step.up[:, 0] @ step.down[0])))
    assert ranks == [3, 3]
    assert make("lora(rank=100)").backbone is not None
    few, many = (sum(p.numel() for p in make(f"lora(rank={r})").parameters()) for r in (4, 100))
    assert many < few * 4  # rank 100 would take 25 times the differences of rank 4


def test_the_heads_stay_as_they_are() -> None:
    net = make("full")
    assert len(blended(net)) == 2
    assert not any(parametrize.is_parametrized(m) for m in net.heads.modules())
    shared = sum(p.numel() for p in net.shared_parameters())
    assert shared == 3 * (4 * 16 + 16 + 16 * 8 + 8)


def test_convolutions_have_differences_of_low_rank() -> None:
    net = mtlkit.create_architecture("paper_mnist(preference=lora(rank=2))", {"left": 10, "right": 10})
    shake(net)
    x = torch.randn(2, 1, 28, 28)
    net.eval().set_preference({"left": 1})
    left = net(x)
    net.set_preference({"right": 1})
    assert not close(net(x), left)


@pytest.mark.parametrize("case", [case for case in CASES if not case.heavy], ids=lambda case: case.spec)
def test_every_architecture_learns_its_differences(case) -> None:
    net = case.build(preference="lora(rank=2)")
    x = case.inputs()
    factors = net.draw_preference()
    losses = [p.square().mean() * f for p, f in zip(net(x).values(), factors, strict=True)]
    net.method.total(losses).backward()
    moved = [p.grad for name, p in net.named_parameters() if name.endswith(".up")]
    assert moved
    assert all(grad is not None for grad in moved)
    assert any(bool(grad.abs().max() > 0) for grad in moved)


def test_the_state_dict_goes_round(tmp_path) -> None:
    net, x = make().eval(), torch.randn(5, 4)
    shake(net)
    net.set_preference({"seg": 1, "depth": 4})
    other = make().eval()
    other.load_state_dict(net.state_dict())
    assert other.preference == net.preference
    assert close(other(x), net(x))
    net.save_pretrained(tmp_path)
    loaded = mtlkit.Architecture.from_pretrained(tmp_path)
    assert loaded.preference == net.preference
    assert close(loaded(x), net(x))
    copied = copy.deepcopy(net)
    copied.set_preference({"depth": 1})
    assert close(net(x), loaded(x)), "a copy has a preference of its own"
    assert not close(copied(x), net(x))


def test_a_folded_network_is_an_ordinary_one_with_the_same_outputs() -> None:
    net, x = make(), torch.randn(5, 4)
    shake(net)
    net.set_preference({"seg": 1, "depth": 4})
    net.draw_preference()
    wanted = net.eval()(x)
    net.fold_preference()
    plain = mtlkit.create_architecture(SPEC, TASKS)
    plain.load_state_dict(net.state_dict())
    assert close(net(x), wanted)
    assert close(plain(x), wanted)
    assert net.preference is None
    assert net.spec == plain.spec


def test_draws_are_uniform_on_the_simplex_and_only_used_in_training() -> None:
    net = make()
    net.train()
    drawn = torch.stack([net.draw_preference() / 2 for _ in range(2000)])
    assert torch.allclose(drawn.sum(dim=1), torch.ones(2000))
    assert abs(float(drawn[:, 0].mean()) - 0.5) < 0.02
    assert abs(float(drawn[:, 0].std()) - 12**-0.5) < 0.02
    assert net.preference["seg"] == pytest.approx(float(drawn[-1, 0]))
    net.eval()
    assert net.preference == {"seg": 0.5, "depth": 0.5}


def test_equal_states_draw_alike_and_other_seeds_differ() -> None:
    first, second = make(), make()
    assert torch.equal(first.draw_preference(), second.draw_preference())
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.draw_preference(), second.draw_preference())
    torch.manual_seed(5)
    other = mtlkit.create_architecture(SPEC, TASKS, preference="full")
    assert not torch.equal(first.draw_preference(), other.draw_preference())


@pytest.mark.parametrize(
    ("preference", "words"),
    [
        ("lorra", "lora"),
        ("lora(rank=0)", "rank"),
        ("lora(ranks=4)", "rank"),
        ("full(rank=4)", "rank"),
        ("lora(4)", "rank=4"),
    ],
)
def test_a_wrong_kind_of_preference_is_refused_with_what_is_accepted(preference, words) -> None:
    with pytest.raises(SpecError, match=words):
        make(preference)


def test_a_wrong_preference_is_refused_with_what_is_accepted() -> None:
    net = make()
    with pytest.raises(MtlkitError, match="depth"):
        net.set_preference({"normals": 1})
    for wrong in ({"seg": -1, "depth": 2}, {"seg": 0}, {}, {"seg": float("nan")}, {"seg": float("inf")}):
        with pytest.raises(SpecError, match="above 0"):
            net.set_preference(wrong)
    plain = mtlkit.create_architecture(SPEC, TASKS)
    assert plain.preference is None
    with pytest.raises(UsageError, match="preference='lora"):
        plain.set_preference({"seg": 1})
    with pytest.raises(SpecError, match="two tasks"):
        mtlkit.create_architecture(SPEC, {"seg": 3}, preference="full")


def conflicting() -> tuple[list[mtlkit.Task], DataLoader]:
    """Two tasks with one shared number to predict: the one wants +x, the other -x."""
    x = torch.randn(256, 1, generator=torch.Generator().manual_seed(3))
    samples = [(row, {"up": row, "down": -row}) for row in x]
    return [mtlkit.Task.regression("up"), mtlkit.Task.regression("down")], DataLoader(
        samples, batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(0)
    )


def conflicted_net(tasks, preference="full"):
    torch.manual_seed(0)
    net = mtlkit.create_architecture(
        "hard_sharing(heads=identity)",
        tasks,
        backbone=nn.Linear(1, 1),
        features=1,
        preference=preference,
    )
    return net, mtlkit.Trainer(net, tasks, torch.optim.Adam(net.parameters(), lr=0.03), progress=False)


@pytest.mark.parametrize("kind", ["full", "lora(rank=1)"])
def test_one_training_learns_the_trade_off_of_two_tasks_that_exclude_each_other(kind) -> None:
    """The minimum of l (w x - x)^2 + (1 - l) (w x + x)^2 is w = 2 l - 1: theta is linear in lambda."""
    tasks, loader = conflicting()
    net, trainer = conflicted_net(tasks, kind)
    trainer.fit(loader, epochs=60)
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        net.eval().set_preference({"up": share, "down": 1 - share})
        assert net.backbone.weight.item() == pytest.approx(2 * share - 1, abs=0.1)
    net.set_preference({"up": 9, "down": 1})
    up = trainer.evaluate(loader)
    net.set_preference({"up": 1, "down": 9})
    down = trainer.evaluate(loader)
    assert up["up"]["loss"] < down["up"]["loss"]
    assert up["down"]["loss"] > down["down"]["loss"]


def test_a_resumed_training_draws_and_learns_as_an_unbroken_one(tmp_path) -> None:
    tasks, _ = conflicting()
    weights = []
    for pieces in ((30,), (13, 30)):  # steps, of which an epoch has 8
        for steps in pieces:
            _, loader = conflicting()
            net, _ = conflicted_net(tasks)
            optimizer = torch.optim.Adam(net.parameters(), lr=0.03)
            output = tmp_path / str(len(pieces))
            trainer = mtlkit.Trainer(net, tasks, optimizer, output=output, progress=False)
            trainer.fit(loader, loader, steps=steps, resume="auto")
        weights.append(net.state_dict())
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def losses_after(net, steps: int = 6) -> tuple[list[list[float]], dict]:
    """The losses of each step, and the weights after the last; the preference changes in every step."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(2)
    seen = []
    for _ in range(steps):
        x = torch.randn(16, 4, generator=generator)
        factors = net.draw_preference()
        found = net(x)
        losses = [found["seg"].logsumexp(1).mean(), (found["depth"] - x[:, :1]).square().mean()]
        optimizer.zero_grad()
        net.method.total(losses, factors=factors).backward()
        optimizer.step()
        seen.append([loss.item() for loss in losses])
    return seen, net.state_dict()


@pytest.mark.parametrize("kind", ["full", pytest.param("lora(rank=2)", marks=pytest.mark.slow)])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_network_follows_every_preference_as_an_eager_one(backend, kind) -> None:
    torch.compiler.reset()
    eager, compiled = make(kind), make(kind)
    compiled.compile(backend=backend)
    shake(eager)
    shake(compiled)
    wanted, weights = losses_after(eager)
    found, others = losses_after(compiled)
    assert torch.allclose(torch.tensor(found), torch.tensor(wanted), rtol=1e-4)
    for name, value in weights.items():
        if not name.endswith("_extra_state"):
            assert torch.allclose(others[name], value, atol=1e-5), name
    x = torch.randn(5, 4)
    for chosen in ({"seg": 1}, {"depth": 1}, {"seg": 1, "depth": 3}):
        eager.eval().set_preference(chosen)
        compiled.eval().set_preference(chosen)
        assert close(compiled(x), eager(x))


@pytest.mark.parametrize("kind", ["full", "lora(rank=1)"])
def test_mixed_precision_learns_the_trade_off_too(kind) -> None:
    tasks, loader = conflicting()
    net, _ = conflicted_net(tasks, kind)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.03)
    mtlkit.Trainer(net, tasks, optimizer, mixed_precision="bf16", progress=False).fit(loader, epochs=40)
    assert all(parameter.dtype == torch.float32 for parameter in net.parameters())
    for share in (0.0, 0.5, 1.0):
        net.eval().set_preference({"up": share, "down": 1 - share})
        assert net.backbone.weight.item() == pytest.approx(2 * share - 1, abs=0.15)


def test_parts_that_read_the_losses_do_not_see_the_preference() -> None:
    """The reference of ``normalize`` is the loss, not the loss times what the first batch drew."""
    tasks, loader = conflicting()
    torch.manual_seed(0)
    net = mtlkit.create_architecture(
        "hard_sharing(backbone=mlp(8, inputs=1))", tasks, method="normalize+sum", preference="full"
    )
    x, y = next(iter(loader))
    with torch.no_grad():
        first = net(x)
    wanted = [(first[name] - y[name]).square().mean().item() for name in net.tasks]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    trainer = mtlkit.Trainer(net, tasks, optimizer, progress=False)
    trainer.fit([(x, y)], steps=1)
    assert net.method.parts[0].reference.tolist() == pytest.approx(wanted, rel=1e-5)
    assert net.preference["up"] != pytest.approx(0.5, abs=0.01)


def test_factors_multiply_the_weighed_losses() -> None:
    for spec in ("sum", "normalize", "imtl_g"):
        method = mtlkit.create_method(spec, ("a", "b"))
        plain, twice = (mtlkit.create_method(spec, ("a", "b")) for _ in range(2))
        z = torch.ones(3, requires_grad=True)
        grads = []
        for each, factors in ((plain, None), (twice, torch.tensor([2.0, 2.0])), (method, [0.0, 0.0])):
            first, second = each(z)
            losses = {"a": first.sum(), "b": (second**2).sum()}
            (grad,) = torch.autograd.grad(each.total(losses, factors=factors), z)
            grads.append(grad)
        assert torch.allclose(grads[1], 2 * grads[0]), spec
        assert not grads[2].any(), spec
    with pytest.raises(SpecError, match="3 factors for 2 tasks"):
        method.total([torch.tensor(1.0), torch.tensor(1.0)], factors=[1, 2, 3])


def test_full_differences_of_a_convolution_can_be_channels_last() -> None:
    net = mtlkit.create_architecture("paper_mnist(preference=full)", {"left": 10, "right": 10})
    shake(net)
    x = torch.randn(2, 1, 28, 28)
    wanted = net.eval()(x)
    assert close(net.to(memory_format=torch.channels_last)(x), wanted)
