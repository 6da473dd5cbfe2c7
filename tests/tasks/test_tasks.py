import math
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from mtlkit import Task
from mtlkit.errors import SpecError, UnknownNameError
from mtlkit.tasks import NO_LABEL, create_task, list_tasks, register_task
from mtlkit.tasks.registry import kinds
from mtlkit.training import collate

NAN = math.nan


def metrics_of(task: Task, prediction, target) -> dict[str, float]:
    metrics = task.make_metrics()
    half = len(prediction) // 2
    task.update(metrics, prediction[:half], target[:half])
    task.update(metrics, prediction[half:], target[half:])
    return task.compute(metrics)


def test_unlabeled_samples_count_neither_in_loss_nor_in_accuracy():
    task = Task.classification("c", 3)
    prediction = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([0, -1, 2, NO_LABEL, 1, 0])
    known = target >= 0
    loss, count = task.measure(prediction, target)
    assert count == 4
    assert torch.equal(loss, functional.cross_entropy(prediction[known], target[known]))
    expected = (prediction.argmax(1)[known] == target[known]).float().mean()
    assert metrics_of(task, prediction, target)["accuracy"] == pytest.approx(float(expected))


def test_a_batch_without_labels_has_no_loss():
    for task, target in (
        (Task.classification("c", 3), torch.tensor([-1, -1])),
        (Task.regression("r"), torch.full((2, 1), NAN)),
        (Task.depth("d"), torch.zeros(2, 1, 4, 4)),
        (Task.normals("n"), torch.zeros(2, 3, 4, 4)),
        (Task.segmentation("s", 3), torch.full((2, 4, 4), -1)),
    ):
        shape = {"classification": (2, 3), "segmentation": (2, 3, 4, 4)}.get(task.kind, target.shape)
        assert task.measure(torch.zeros(shape), target) == (None, 0)
        assert task.measure(torch.zeros(shape), None) == (None, 0)


def test_binary_task_masks_nan_and_scores_logits_as_logits():
    task = Task.binary("b")
    # logits within (0, 1) are all above the threshold of 0: torchmetrics alone would misread them
    prediction = torch.tensor([[0.1], [0.2], [0.3], [-1.0]])
    target = torch.tensor([[1.0], [NAN], [0.0], [0.0]])
    loss, count = task.measure(prediction, target)
    known = torch.tensor([0, 2, 3])
    assert count == 3
    expected = functional.binary_cross_entropy_with_logits(prediction[known], target[known])
    assert torch.allclose(loss, expected)
    scores = metrics_of(task, prediction, target)
    assert scores["accuracy"] == pytest.approx(2 / 3)
    assert scores["f1"] == pytest.approx(2 / 3)


def test_multilabel_task_masks_single_labels():
    task = Task.multilabel("m", 3)
    prediction = torch.tensor([[2.0, -2.0, 1.0], [-1.0, 3.0, -1.0]])
    target = torch.tensor([[1.0, 0.0, NAN], [0.0, NAN, 1.0]])
    loss, count = task.measure(prediction, target)
    known = ~torch.isnan(target)
    assert count == 4
    expected = functional.binary_cross_entropy_with_logits(prediction[known], target[known])
    assert torch.allclose(loss, expected)
    assert metrics_of(task, prediction, target)["accuracy"] == pytest.approx(3 / 4)


def test_regression_does_not_broadcast_column_against_row():
    task = Task.regression("r")
    prediction, target = torch.arange(4.0)[:, None], torch.arange(4.0)
    assert task.measure(prediction, target)[0] == 0
    with pytest.raises(SpecError, match=r"'r'.*\(4, 2\).*\(4,\)"):
        task.measure(torch.zeros(4, 2), target)


def test_regression_metrics_leave_nan_out():
    task = Task.regression("r", 2)
    prediction = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    target = torch.tensor([[0.0, NAN], [3.0, 1.0]])
    loss, count = task.measure(prediction, target)
    assert (float(loss), count) == (pytest.approx(10 / 3), 3)
    found = metrics_of(task, prediction, target)
    expected = {"mse": 10 / 3, "mae": 4 / 3, "rmse": math.sqrt(10 / 3), "r2": 1 - 1 / 4.5}
    assert found == pytest.approx(expected)  # the second column has one label, so no variance


def test_rmse_is_in_the_unit_of_the_data_and_r2_is_that_of_scikit_learn():
    from sklearn.metrics import r2_score, root_mean_squared_error

    random = torch.Generator().manual_seed(0)
    means, deviations = torch.tensor([50.0, -3.0]), torch.tensor([12.0, 0.5])
    values = torch.randn(100, 2, generator=random) * deviations + means
    guesses = values + torch.randn(100, 2, generator=random) * deviations / 2
    task = Task.regression("r", 2)
    task.means, task.deviations = means.tolist(), deviations.tolist()
    found = metrics_of(task, (guesses - means) / deviations, (values - means) / deviations)
    assert found["r2"] == pytest.approx(r2_score(values, guesses), rel=1e-5)
    expected = root_mean_squared_error(values.reshape(-1), guesses.reshape(-1))
    assert found["rmse"] == pytest.approx(expected, rel=1e-5)


def test_a_constant_target_has_no_r2():
    found = metrics_of(Task.regression("r"), torch.randn(6, 1), torch.full((6, 1), 1234.5))
    assert math.isnan(found["r2"])
    assert found["rmse"] > 1200


@pytest.mark.parametrize("error", ["l1", "mse"])
def test_a_dense_regression_counts_every_known_pixel_and_zero_is_a_value(error):
    task = create_task(f"dense_regression(outputs=2, error={error})", "edges")
    prediction = torch.randn(4, 2, 3, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    target = torch.zeros(4, 2, 3, 5)
    target[0, :, 0] = NAN
    known = ~torch.isnan(target)
    errors = (prediction.detach() - target)[known].abs()
    expected = (errors if error == "l1" else errors.square()).mean()
    loss, count = task.measure(prediction, target)
    assert count == int(known.sum())
    assert torch.allclose(loss, expected)
    loss.backward()
    assert torch.isfinite(prediction.grad).all()
    found = metrics_of(task, prediction.detach(), target)
    assert found["mae"] == pytest.approx(float(errors.mean()), rel=1e-5)
    assert found[task.main_metric] == pytest.approx(float(expected), rel=1e-5)
    assert task.decode(prediction.detach())["edges"].shape == (4, 2, 3, 5)


def test_gradients_do_not_turn_nan_where_labels_are_missing():
    for task, shape, target in (
        (Task.regression("r", 2), (3, 2), torch.tensor([[0.0, NAN], [NAN, NAN], [1.0, 2.0]])),
        (Task.normals("n"), (1, 3, 1, 2), torch.tensor([0.0, 0, 0, 0, 0, 1]).reshape(1, 3, 1, 2)),
        (Task.depth("d"), (1, 1, 1, 2), torch.tensor([NAN, 2.0]).reshape(1, 1, 1, 2)),
    ):
        prediction = torch.zeros(shape, requires_grad=True)
        loss, _ = task.measure(prediction, target)
        loss.backward()
        assert torch.isfinite(prediction.grad).all(), task


def test_segmentation_scores_follow_their_definition():
    generator = torch.Generator().manual_seed(0)
    prediction = torch.randn(4, 3, 5, 5, generator=generator)
    target = torch.randint(-1, 3, (4, 5, 5), generator=generator)
    chosen, known = prediction.argmax(1), target >= 0
    overlaps = []
    for k in range(3):
        truth, guess = (target == k) & known, (chosen == k) & known
        overlaps.append(((truth & guess).sum() / (truth | guess).sum()).item())
    task = Task.segmentation("s", 3)
    expected = {
        "miou": sum(overlaps) / 3,
        "pixel_accuracy": float((chosen == target)[known].float().mean()),
    }
    assert metrics_of(task, prediction, target) == pytest.approx(expected)
    loss, count = task.measure(prediction, target)
    assert count == int(known.sum())
    logits = prediction.permute(0, 2, 3, 1)[known]
    assert torch.allclose(loss, functional.cross_entropy(logits, target[known]))


def test_a_class_that_never_occurs_is_left_out_of_the_mean_overlap():
    prediction = functional.one_hot(torch.tensor([[[0, 1]], [[0, 1]]]), 3).permute(0, 3, 1, 2).float()
    scores = metrics_of(Task.segmentation("s", 3), prediction, torch.tensor([[[0, 1]], [[0, 1]]]))
    assert scores["miou"] == 1


def test_depth_errors_follow_their_definition():
    prediction = torch.tensor([1.0, 2.0, 5.0, 9.0]).reshape(2, 1, 1, 2)
    target = torch.tensor([2.0, 2.0, 4.0, 0.0]).reshape(2, 1, 1, 2)
    task = Task.depth("d")
    scores = metrics_of(task, prediction, target)
    assert scores == pytest.approx({"abs_error": 2 / 3, "rel_error": (0.5 + 0 + 0.25) / 3})
    loss, count = task.measure(prediction, target)
    assert (float(loss), count) == (pytest.approx(2 / 3), 3)


def test_normal_angles_follow_their_definition():
    degrees = torch.tensor([5.0, 20.0, 28.0, 50.0, 11.0, 90.0, 0.5, 33.0])
    radians = torch.deg2rad(degrees.double())
    prediction = torch.stack([radians.cos(), radians.sin(), torch.zeros(8)], dim=0)  # (3, 8)
    prediction = 3 * prediction.reshape(1, 3, 2, 4).repeat(2, 1, 1, 1).float()
    target = torch.tensor([1.0, 0, 0]).reshape(1, 3, 1, 1).repeat(2, 1, 2, 4)
    target[:, :, 0, 0] = 0  # the 5 degrees are unknown
    known = degrees[1:]
    scores = metrics_of(Task.normals("n"), prediction, target)
    assert scores["mean_angle"] == pytest.approx(float(known.mean()), abs=1e-3)
    assert scores["median_angle"] == pytest.approx(float(known.median()), abs=0.011)
    for limit in (11.25, 22.5, 30):
        expected = float((known < limit).float().mean())
        assert scores[f"within_{limit:g}"] == pytest.approx(expected)
    loss, count = Task.normals("n").measure(prediction, target)
    assert count == 14
    assert float(loss) == pytest.approx(1 - float(torch.deg2rad(known).cos().mean()), abs=1e-6)


def test_a_custom_task_drops_rows_with_nan():
    task = Task("c", lambda p, t: (p - t).abs().mean())
    loss, count = task.measure(torch.zeros(3, 2), torch.tensor([[1.0, 1.0], [NAN, 5.0], [2.0, 2.0]]))
    assert (float(loss), count) == (1.5, 2)
    assert task.main_metric == "loss"


def test_directions_are_asked_of_the_metrics():
    from torchmetrics import MeanMetric, MeanSquaredError

    task = Task("r", functional.mse_loss, {"mse": MeanSquaredError()})
    assert task.higher_is_better == {"mse": False}
    with pytest.raises(SpecError, match="does not say whether higher is better"):
        Task("r", functional.mse_loss, {"mean": MeanMetric()})


def test_a_loss_that_is_not_a_scalar_is_named():
    task = Task("r", lambda p, t: (p - t).abs())
    with pytest.raises(SpecError, match="loss of task 'r' must be a scalar"):
        task.measure(torch.zeros(3), torch.ones(3))


def test_tasks_are_made_from_descriptions():
    kinds = ("classification", "binary", "multilabel", "regression", "segmentation", "depth", "normals")
    for kind in (*kinds, "dense_regression"):
        made = Task.of(SimpleNamespace(name="t", kind=kind, outputs=3))
        assert (made.name, made.kind) == ("t", kind)
    with pytest.raises(UnknownNameError, match="did you mean 'depth'"):
        Task.of(SimpleNamespace(name="t", kind="dept", outputs=3))


def test_collate_fills_what_is_missing_per_sample():
    samples = [
        (torch.zeros(2), {"a": 1, "b": torch.tensor([0.5]), "c": None, "d": 2.0}),
        (torch.ones(2), {"a": None, "b": None, "d": None}),
    ]
    inputs, targets = collate(samples)
    assert inputs.shape == (2, 2)
    assert targets["a"].tolist() == [1, NO_LABEL]
    assert targets["b"][0] == 0.5
    assert torch.isnan(targets["b"][1])
    assert targets["c"] is None
    assert targets["d"].dtype == torch.float32


def test_collate_takes_plain_numbers_and_lists():
    samples = [
        (torch.zeros(2), {"pair": [1.0, None], "number": 1, "flag": True}),
        (torch.zeros(2), {"pair": (2.0, 3.0), "number": 0.5, "flag": None}),
    ]
    _, targets = collate(samples)
    assert targets["pair"].dtype == torch.float32
    assert targets["pair"].shape == (2, 2)
    assert torch.isnan(targets["pair"][0, 1])
    assert targets["number"].tolist() == [1.0, 0.5]
    assert targets["flag"][0] == 1
    assert torch.isnan(targets["flag"][1])


def test_a_whole_number_that_is_missing_is_no_target_of_a_regression():
    _, targets = collate([(torch.zeros(1), {"r": 3}), (torch.zeros(1), {"r": None})])
    task = Task.regression("r")
    loss, count = task.measure(torch.zeros(2, 1), targets["r"])
    assert (float(loss), count) == (9.0, 1)
    assert metrics_of(task, torch.zeros(2, 1), targets["r"])["mse"] == 9


def test_an_own_loss_does_not_broadcast_plain_numbers():
    _, targets = collate([(torch.zeros(1), {"r": float(i)}) for i in range(3)])
    task = Task("r", functional.l1_loss, outputs=1)
    assert float(task.measure(torch.arange(3.0)[:, None], targets["r"])[0]) == 0


def test_classes_are_a_number_or_names():
    named = Task.classification("c", ["cat", "dog"])
    assert (named.outputs, named.classes) == (2, ("cat", "dog"))
    assert named.text(torch.tensor(1)) == "dog"
    assert named.text(torch.tensor(-1)) == "?"
    assert Task.segmentation("s", classes=5).outputs == 5
    with pytest.raises(SpecError, match="classes of task 'c' must differ"):
        Task.classification("c", ["cat", "cat"])
    with pytest.raises(SpecError, match="an integer or a list"):
        create_task("classification(classes=cat)", "c")


def test_the_missing_value_of_a_kind_is_a_missing_label():
    shapes = {
        "classification": ((2,), (2, 3)),
        "segmentation": ((2, 4, 4), (2, 3, 4, 4)),
        "multilabel": ((2, 3), (2, 3)),
        "depth": ((2, 1, 4, 4), (2, 1, 4, 4)),
        "normals": ((2, 3, 4, 4), (2, 3, 4, 4)),
        "dense_regression": ((2, 3, 4, 4), (2, 3, 4, 4)),
    }
    for kind in list_tasks():
        task = Task.of(SimpleNamespace(name="t", kind=kind, outputs=3 if kind in shapes else 1))
        target, prediction = shapes.get(kind, ((2, 1), (2, 1)))
        assert task.measure(torch.zeros(prediction), torch.full(target, task.missing)) == (None, 0)


def test_the_area_under_the_curve_is_that_of_scikit_learn():
    from sklearn.metrics import roc_auc_score

    random = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 1, generator=random).round(decimals=1)  # with ties
    target = (torch.rand(200, 1, generator=random) < 0.3).float()
    target[::7] = NAN
    known = ~torch.isnan(target)
    expected = roc_auc_score(target[known], logits[known].sigmoid())
    assert metrics_of(Task.binary("b"), logits, target)["auc"] == pytest.approx(expected, abs=1e-9)
    alone = metrics_of(Task.binary("b"), logits, torch.zeros(200, 1))
    assert math.isnan(alone["auc"])


def test_confident_answers_are_ranked_by_their_logits():
    task = Task.binary("sure")
    metrics = task.make_metrics()
    task.update(metrics, torch.tensor([20.0, 18.0, 25.0, 19.0]), torch.tensor([1.0, 0.0, 1.0, 0.0]))
    assert task.compute(metrics)["auc"] == 1.0


def test_normals_that_are_not_finite_have_no_mean_angle():
    task = Task.normals("normals")
    metrics = task.make_metrics()
    prediction = torch.ones(1, 3, 2, 2)
    prediction[0, :, 0, 0] = math.nan
    task.update(metrics, prediction, torch.ones(1, 3, 2, 2))
    assert math.isnan(task.compute(metrics)["mean_angle"])


def test_a_kind_of_task_is_added_in_one_place():
    with kinds.temporary():

        @register_task("tests_absolute")
        class Absolute(Task):
            def __init__(self, name: str, *, scale: float = 1.0) -> None:
                super().__init__(name, lambda p, t: scale * (p - t).abs().mean(), outputs=1)

        task = create_task("tests_absolute(scale=2)", "a")
        assert (task.kind, task.outputs) == ("tests_absolute", 1)
        assert float(task.measure(torch.zeros(2, 1), torch.ones(2, 1))[0]) == 2
        with pytest.raises(UnknownNameError, match="did you mean 'scale'"):
            create_task("tests_absolute(scal=2)", "a")


def test_every_kind_can_be_compared_by_another_of_its_metrics():
    task = create_task("binary(metric=auc)", "rain")
    assert task.main_metric == "auc"
    assert set(task.higher_is_better) == {"f1", "auc", "accuracy"}
    assert create_task(task.spec, "rain").main_metric == "auc"
    angle = create_task("normals(metric=median_angle)", "normals")
    assert (angle.main_metric, angle.compared) == ("median_angle", ())
    with pytest.raises(UnknownNameError, match=r"metric of task 'rain' 'mse'.*accuracy, auc, f1"):
        create_task("binary(metric=mse)", "rain")


def test_a_kind_that_lacks_an_option_says_which():
    with pytest.raises(SpecError, match=r"task 'c' of kind classification: .*'classes'"):
        create_task("classification", "c")


def test_a_task_without_outputs_is_refused():
    with pytest.raises(SpecError, match="outputs of task 't' must be 1 or more, not 0"):
        create_task("regression(outputs=0)", "t")


OWN_LOSSES = [
    # kind, options, torch's loss, shape of the prediction, target with missing labels
    ("classification", {"classes": 3}, functional.cross_entropy, (4, 3), [0, NO_LABEL, 2, -1]),
    ("binary", {}, functional.soft_margin_loss, (4, 1), [[1.0], [NAN], [0.0], [-1.0]]),
    ("multilabel", {"labels": 2}, functional.l1_loss, (3, 2), [[1.0, 0.0], [NAN, 1.0], [0.0, 1.0]]),
    ("regression", {"outputs": 2}, functional.huber_loss, (3, 2), [[1.5, 0.0], [NAN, 1.0], [2.0, 3.0]]),
    ("segmentation", {"classes": 3}, functional.cross_entropy, (1, 3, 2, 2), [[[0, -1], [2, NO_LABEL]]]),
    ("depth", {}, functional.huber_loss, (1, 1, 2, 2), [[[[1.0, 0.0], [NAN, 3.0]]]]),
    ("normals", {}, functional.l1_loss, (1, 3, 1, 2), [[[[1.0, 0.0]], [[0.0, 0.0]], [[0.0, 0.0]]]]),
    ("dense_regression", {}, functional.huber_loss, (1, 1, 1, 3), [[[[1.0, NAN, 0.0]]]]),
]


@pytest.mark.parametrize(("kind", "options", "loss", "shape", "target"), OWN_LOSSES)
def test_a_ready_made_task_takes_an_own_loss_that_never_sees_a_missing_label(
    kind, options, loss, shape, target
):
    target = torch.tensor(target)
    prediction = torch.randn(shape, generator=torch.Generator().manual_seed(1), requires_grad=True)
    seen = []

    def own(prediction, target):
        seen.append(target)
        return loss(prediction, target)

    task = getattr(Task, kind)("t", *options.values(), loss=own)
    value, count = task.measure(prediction, target)
    value.backward()
    assert torch.isfinite(prediction.grad).all()
    assert not torch.isnan(seen[0].float()).any()
    assert (
        count
        == Task.of(SimpleNamespace(name="t", kind=kind, outputs=task.outputs)).measure(
            prediction, target
        )[1]
    )
    if kind == "depth":
        assert torch.equal(seen[0], torch.tensor([1.0, 3.0]))
    if kind == "regression":
        assert torch.equal(value, loss(prediction[[0, 2]], target[[0, 2]]))
    assert task.loss_name == "own"
    with pytest.raises(SpecError, match="must be a module or function"):
        getattr(Task, kind)("t", *options.values(), loss="l1")
