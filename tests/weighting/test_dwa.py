import math

import pytest
import torch

import mtlkit


def weights(method, values):
    losses = [None if v is None else torch.tensor(v, dtype=torch.float64) for v in values]
    losses = [None if loss is None else loss.requires_grad_() for loss in losses]
    method.total(losses).backward()
    return [None if loss is None else loss.grad.item() for loss in losses]


def test_worked_sequence():
    method = mtlkit.create_method("dwa(temperature=2.0)", 2)
    assert weights(method, [4.0, 2.0]) == [1.0, 1.0]
    assert weights(method, [2.0, 2.0]) == [1.0, 1.0]
    # rates 2/4 and 2/2: 2 softmax(0.25, 0.5)
    assert weights(method, [1.0, 6.0]) == pytest.approx([0.875647, 1.124353], abs=1e-6)
    # rates 1/2 and 6/2: 2 softmax(0.25, 1.5)
    assert weights(method, [1.0, 1.0]) == pytest.approx([0.445400, 1.554600], abs=1e-6)


def test_a_window_averages_its_steps():
    method = mtlkit.create_method("dwa(temperature=1.0, window=2)", 2)
    for values in ([3.0, 1.0], [5.0, 1.0], [1.0, 2.0]):
        assert weights(method, values) == [1.0, 1.0]
    assert weights(method, [3.0, 2.0]) == [1.0, 1.0]
    # window means (4, 1) and (2, 2): rates 0.5 and 2
    expected = [2 * math.exp(r) / (math.exp(0.5) + math.exp(2.0)) for r in (0.5, 2.0)]
    assert weights(method, [9.0, 9.0]) == pytest.approx(expected)
    assert weights(method, [9.0, 9.0]) == pytest.approx(expected)


def test_a_task_that_is_new_or_was_zero_has_the_rate_one():
    method = mtlkit.create_method("dwa(temperature=1.0)", 3)
    weights(method, [4.0, None, 0.0])
    weights(method, [2.0, 5.0, 1.0])
    expected = [3 * math.exp(r) / (math.exp(0.5) + 2 * math.e) for r in (0.5, 1.0, 1.0)]
    assert weights(method, [1.0, 1.0, 1.0]) == pytest.approx(expected)


def test_equal_weights_for_a_high_temperature():
    method = mtlkit.create_method("dwa(temperature=1e9)", 2)
    for values in ([4.0, 1.0], [1.0, 4.0], [1.0, 1.0]):
        found = weights(method, values)
    assert found == pytest.approx([1.0, 1.0])


def test_weights_equal_torchjd_with_an_epoch_as_the_window():
    from torchjd.scalarization import DWA

    generator = torch.Generator().manual_seed(0)
    for case in range(50):
        count, window = 1 + case % 5, 1 + case % 3
        ours = mtlkit.create_method(f"dwa(temperature=1.5, window={window})", count)
        theirs = DWA(1.5)
        for index in range(4 * window):  # 200 epochs in all
            values = torch.rand(count, generator=generator, dtype=torch.float64) + 0.01
            stacked = values.clone().requires_grad_()
            theirs(stacked).backward()
            assert weights(ours, values.tolist()) == pytest.approx(stacked.grad.tolist())
            if (index + 1) % window == 0:
                theirs.step()


@pytest.mark.filterwarnings("ignore:no validation set")
def test_the_trainer_sets_the_length_of_an_epoch_unless_the_window_is_given():
    from tests.training.small_problem import make_loader, make_trainer

    trainer = make_trainer("dwa")
    trainer.fit(make_loader(size=40, batch=8), epochs=3)
    assert str(trainer.method) == "dwa"
    assert trainer.method.parts[0].epoch_batches == 5
    assert trainer.method.parts[0].state_dict()["counted"].tolist() == [0, 0]  # of 15 steps
    trainer = make_trainer("dwa(window=4)")
    trainer.fit(make_loader(size=40, batch=8), epochs=3)
    assert trainer.method.parts[0].state_dict()["counted"].tolist() == [3, 3]
