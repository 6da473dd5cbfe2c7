import torch

import mtlkit


def test_weights_are_positive_sum_to_one_and_change_with_every_step():
    method = mtlkit.create_method("random", 3)
    seen = []
    for _ in range(5):
        seen.append(method.weights(torch.eye(3)))
        method.combine(torch.eye(3))
    for weights in seen:
        assert (weights > 0).all()
        torch.testing.assert_close(weights.sum(), torch.tensor(1.0))
    assert len({tuple(weights.tolist()) for weights in seen}) == 5


def test_weights_are_the_softmax_of_standard_normal_numbers():
    method = mtlkit.create_method("random(seed=1)", 2)
    differences = []
    for _ in range(500):
        weights = method.combine(torch.eye(2, dtype=torch.float64))
        differences.append((weights[0] / weights[1]).log())
    # the difference of two standard normal numbers has mean 0 and variance 2
    drawn = torch.stack(differences)
    assert drawn.mean().abs() < 4 * (2 / 500) ** 0.5
    assert (drawn.var() - 2).abs() < 4 * 2 * (2 / 500) ** 0.5


def test_seeds_give_different_weights_and_the_same_seed_the_same():
    rows = torch.eye(3)
    one, again = (mtlkit.create_method("random(seed=1)", 3).combine(rows) for _ in range(2))
    assert torch.equal(one, again)
    assert not torch.equal(one, mtlkit.create_method("random(seed=2)", 3).combine(rows))
