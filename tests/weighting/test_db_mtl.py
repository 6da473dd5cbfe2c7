import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mtlkit
from mtlkit.errors import UsageError
from tests.networks import SmallNet


def diagonal(*norms: float) -> torch.Tensor:
    return torch.diag(torch.tensor(norms, dtype=torch.float64))


def test_gradients_get_the_largest_average_norm():
    method = mtlkit.create_method("db_mtl(beta=0.9)", 2)
    torch.testing.assert_close(method.combine(diagonal(1, 2)), torch.tensor([2.0, 2.0]).double())
    # the averages are 1 and 0.9 * 2 + 0.1 * 1
    torch.testing.assert_close(method.combine(diagonal(1, 1)), torch.tensor([1.9, 1.9]).double())


def test_beta_may_fall_with_the_steps():
    method = mtlkit.create_method("db_mtl(beta=0.8, beta_sigma=1.0)", 2)
    method.combine(diagonal(1, 2))
    # beta is 0.8 / 2 at the second step
    torch.testing.assert_close(
        method.combine(diagonal(1, 1)), torch.full((2,), 0.4 * 2 + 0.6, dtype=torch.float64)
    )


def test_heads_and_features_follow_the_logarithms_of_the_losses():
    method = mtlkit.create_method("db_mtl", 2)
    z = torch.tensor([[1.0, 2.0]], requires_grad=True)
    head = torch.tensor(3.0, requires_grad=True)
    first, second = method(z)
    losses = [head * first[0, 0] + 1, 10 * second[0, 1]]  # 4 and 20
    method.total(losses).backward()
    torch.testing.assert_close(head.grad, torch.tensor(1 / 4))
    # gradients of the logarithms: 3 / 4 and 10 / 20; both get the larger norm
    torch.testing.assert_close(z.grad, torch.tensor([[0.75, 0.75]]))


@given(st.integers(0, 2**32 - 1), st.floats(1e-3, 1e3))
def test_the_scale_of_a_loss_does_not_matter(seed, factor):
    gradients = []
    for scale in (1.0, factor):
        method = mtlkit.create_method("db_mtl", 2)
        generator = torch.Generator().manual_seed(seed)
        z = torch.randn(4, 3, dtype=torch.float64, generator=generator).requires_grad_()
        views = method(z)
        method.total([views[0].square().mean(), scale * (views[1] - 1).square().mean()]).backward()
        gradients.append(z.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-6, atol=1e-9)


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_all_tasks_contribute_with_one_length(seed, tasks):
    rows = torch.randn(tasks, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    weights = mtlkit.create_method("db_mtl", tasks).weights(rows @ rows.T)
    lengths = weights * rows.norm(dim=1)
    torch.testing.assert_close(lengths, rows.norm(dim=1).max().expand(tasks))


class AuthorsRule:
    """The authors' merge of the shared parameters' gradients, coordinate by coordinate."""

    def __init__(self, tasks: int, size: int, beta: float, sigma: float) -> None:
        self.averages = torch.zeros(tasks, size, dtype=torch.float64)
        self.beta, self.sigma = beta, sigma
        self.steps = [0] * tasks  # theirs is one number: no task is ever absent there

    def __call__(self, rows: dict[int, torch.Tensor]) -> torch.Tensor:
        for task, row in rows.items():
            self.steps[task] += 1
            beta = self.beta / self.steps[task] ** self.sigma
            self.averages[task] = row + beta * (self.averages[task] - row)
        norms = {task: self.averages[task].norm() for task in rows}
        largest = max(norms.values())
        return sum(largest / (norms[task] + 1e-8) * self.averages[task] for task in rows)


def angle(one: torch.Tensor, other: torch.Tensor) -> float:
    """In degrees; by the sine, as the cosine of a small angle is one to rounding."""
    one, other = one / one.norm(), other / other.norm()
    return math.degrees(2 * math.asin(min(1.0, (one - other).norm().item() / 2)))


class Shared(torch.nn.Module):
    """Gives all tasks the features as they are, and merges nothing."""

    def forward(self, features: torch.Tensor) -> list[torch.Tensor]:
        return [features] * 3


def log_gradients(net: SmallNet, losses) -> dict[int, torch.Tensor]:
    """Gradients of the present losses' logarithms with respect to the backbone."""
    rows = {}
    for task, loss in enumerate(losses):
        if loss is not None:
            shared = list(net.backbone.parameters())
            grads = torch.autograd.grad(torch.log(loss + 1e-8), shared, retain_graph=True)
            rows[task] = torch.cat([g.flatten() for g in grads])
    return rows


def backbone_gradient(net: SmallNet) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in net.backbone.parameters()])


@pytest.mark.parametrize("fork", [True, False], ids=["features", "losses"])
@pytest.mark.parametrize(("beta", "sigma"), [(0.9, 0.0), (0.9, 0.5), (0.5, 1.0), (0.0, 0.0)])
def test_of_the_parameters_it_is_the_authors_rule(fork, beta, sigma):
    net = SmallNet("sum").double()
    method = mtlkit.create_method(f"db_mtl(beta={beta}, beta_sigma={sigma}, wrt=parameters)", 3)
    rule = AuthorsRule(3, sum(p.numel() for p in net.backbone.parameters()), beta, sigma)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    for step in range(8):
        x = torch.randn(8, 4, dtype=torch.float64)
        labels = torch.ones(8, 3)
        if step % 3 == 2:
            labels[:, 1] = 0  # the second task is absent
        net.method = Shared()
        expected = rule(log_gradients(net, net.losses(x, labels)))
        optimizer.zero_grad()
        net.method = method if fork else Shared()
        method.total(net.losses(x, labels)).backward()
        merged = backbone_gradient(net)
        assert angle(merged, expected) < 1e-4
        assert merged.norm().item() == pytest.approx(expected.norm().item(), rel=1e-6)
        torch.testing.assert_close(method.parts[0].averages, rule.averages, rtol=1e-6, atol=1e-9)
        optimizer.step()
    assert method.parts[0].seen.tolist() == [8, 6, 8]


def test_heads_follow_the_logarithms_also_with_parameters():
    net = SmallNet("db_mtl(wrt=parameters)").double()
    x = torch.randn(8, 4, dtype=torch.float64)
    losses = net.losses(x)
    expected = torch.autograd.grad(torch.log(losses[1]), net.heads[1].weight, retain_graph=True)[0]
    net.method.total(losses).backward()
    torch.testing.assert_close(net.heads[1].weight.grad, expected)


def test_the_average_starts_at_zero_with_parameters():
    method = mtlkit.create_method("db_mtl(beta=0.9, wrt=parameters)", 2)
    row = torch.tensor([3.0, -4.0], dtype=torch.float64)
    torch.testing.assert_close(method.combine(row.repeat(2, 1)), 0.1 * 2 * row)
    torch.testing.assert_close(method.combine(row.repeat(2, 1)), 0.19 * 2 * row)


def test_a_state_may_be_loaded_over_another():
    rows = torch.randn(3, 3, 5, generator=torch.Generator().manual_seed(0))
    method, used = (mtlkit.create_method("db_mtl(wrt=parameters)", 3) for _ in range(2))
    method.combine(rows[0])
    used.combine(rows[1])
    used.load_state_dict(method.state_dict(), strict=True)
    assert torch.equal(used.combine(rows[2]), method.combine(rows[2]))


def test_a_state_from_before_the_first_step_can_be_loaded():
    fresh, used = (mtlkit.create_method("db_mtl(wrt=parameters)", 2) for _ in range(2))
    rows = torch.randn(2, 4)
    used.combine(rows)
    used.load_state_dict(fresh.state_dict(), strict=True)
    assert torch.equal(used.combine(rows), fresh.combine(rows))


def test_the_type_of_the_gradients_may_change():
    rows = torch.randn(2, 2, 4, generator=torch.Generator().manual_seed(0))
    mixed, exact = (mtlkit.create_method("db_mtl(wrt=parameters)", 2) for _ in range(2))
    mixed.combine(rows[0])
    exact.combine(rows[0].double())
    torch.testing.assert_close(mixed.combine(rows[1].double()), exact.combine(rows[1].double()))


def test_other_parameters_than_before_are_an_error():
    method = mtlkit.create_method("db_mtl(wrt=parameters)", 2)
    method.combine(torch.ones(2, 4))
    with pytest.raises(UsageError, match=r"3 entries, and 'averages' remembers 4"):
        method.combine(torch.ones(2, 3))
