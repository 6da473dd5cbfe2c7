"""Simple models beside the networks: a constant, ridge regression, a forest and boosted trees."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtlkit.data.base import DataSet
from mtlkit.errors import MissingExtraError, unknown_name
from mtlkit.tasks import Task

Scores: TypeAlias = dict[str, dict[str, float]]
"""Metrics by task, as a run's test metrics."""
MODELS = ("constant", "ridge", "forest", "boosting")
_MOST_ROWS = 20_000  # of a tree
_SMALLEST = 1e-6  # of a probability, so that its logarithm is finite


def fit_baselines(
    dataset: DataSet, numbers: int, models: Sequence[str] = ("constant", "ridge", "forest")
) -> dict[str, Scores]:
    """Fit each model for each task on the training samples, and score it on the test samples.

    Args:
        dataset: its splits hold inputs (N, d): numbers, then codes of categories.
        numbers: how many inputs are numbers; the codes after them are one-hot for ``ridge``.
        models: of ``constant`` (the mean, or how often a class occurs), ``ridge`` (ridge regression,
            for classes logistic), ``forest`` (200 trees) and ``boosting`` (boosted trees).

    Returns:
        Metrics by model and task, those of the tasks themselves and the loss. A task of a kind that
        these models do not know, or without a label to learn from, is left out.
    """
    sklearn = _import_sklearn()
    for name in models:
        if name not in MODELS:
            raise unknown_name("baseline", name, MODELS)
    train: Any = dataset.train
    test: Any = dataset.test
    found: dict[str, Scores] = {}
    for name in models:
        found[name] = {}
        for task in dataset.tasks:
            target = train.targets[task.name]
            prediction = _predict(sklearn, name, task, numbers, train.inputs, target, test.inputs)
            if prediction is not None:
                found[name][task.name] = score(task, prediction, test.targets[task.name])
    return found


def score(task: Task, prediction: Tensor, target: Tensor) -> dict[str, float]:
    """Return loss and metrics of predictions for all samples at once."""
    loss, _ = task.measure(prediction, target)
    metrics = task.make_metrics()
    task.update(metrics, prediction, target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a metric without any label
        values = task.compute(metrics)
    return {"loss": float("nan") if loss is None else float(loss), **values}


def _predict(
    sklearn: Any, name: str, task: Task, numbers: int, inputs: Tensor, target: Tensor, rows: Tensor
) -> Tensor | None:
    """Return what the task's head would: numbers, or logits."""
    x, new = inputs.double().numpy(), rows.double().numpy()
    if task.kind == "classification":
        known = (target >= 0).numpy()
        if not known.any():
            return None
        return _class_logits(sklearn, name, numbers, x[known], target[known].numpy(), new, task.outputs)
    if task.kind not in ("regression", "binary", "multilabel"):
        return None
    answers = target.reshape(len(target), -1).double().numpy()
    columns = []
    for column in answers.T:
        if task.kind == "regression":
            known = np.isfinite(column)
            if not known.any():
                return None
            model = _make(sklearn, name, numbers, x.shape, classes=False)
            columns.append(torch.from_numpy(model.fit(x[known], column[known]).predict(new)))
        else:
            known = column >= 0
            if not known.any():
                return None
            logits = _class_logits(
                sklearn, name, numbers, x[known], column[known].astype(np.int64), new, 2
            )
            columns.append(logits[:, 1] - logits[:, 0])
    return torch.stack(columns, dim=1).float()


def _class_logits(
    sklearn: Any, name: str, numbers: int, x: Any, y: NDArray[np.int64], new: Any, classes: int | None
) -> Tensor:
    """Return logarithms of the probabilities (N, classes); a class that does not occur is the least."""
    found = np.full((len(new), classes or int(y.max()) + 1), _SMALLEST)
    if len(np.unique(y)) == 1:
        found[:, y[0]] = 1
    else:
        model = _make(sklearn, name, numbers, x.shape, classes=True).fit(x, y)
        found[:, model.classes_] = np.maximum(model.predict_proba(new), _SMALLEST)
    return torch.from_numpy(found / found.sum(axis=1, keepdims=True)).log().float()


def _make(sklearn: Any, name: str, numbers: int, shape: tuple[int, int], classes: bool) -> Any:
    """Make a model of scikit-learn, which is deterministic."""
    rows, inputs = shape
    codes = list(range(numbers, inputs))
    if name == "constant":
        made: Callable[..., Any]
        made = sklearn.dummy.DummyClassifier if classes else sklearn.dummy.DummyRegressor
        return made(strategy="prior") if classes else made()
    if name == "ridge":
        one_hot = sklearn.preprocessing.OneHotEncoder(handle_unknown="ignore")
        encode = sklearn.compose.ColumnTransformer([("codes", one_hot, codes)], remainder="passthrough")
        linear = sklearn.linear_model
        last = (
            linear.LogisticRegression(max_iter=1000)
            if classes
            else linear.RidgeCV(np.logspace(-3, 3, 13))
        )
        return sklearn.pipeline.make_pipeline(encode, last)
    trees = sklearn.ensemble
    if name == "forest":
        made = trees.RandomForestClassifier if classes else trees.RandomForestRegressor
        return made(
            n_estimators=200, random_state=0, max_samples=_MOST_ROWS if rows > _MOST_ROWS else None
        )
    made = trees.HistGradientBoostingClassifier if classes else trees.HistGradientBoostingRegressor
    return made(random_state=0)


def _import_sklearn() -> Any:
    try:
        import sklearn
        import sklearn.compose
        import sklearn.dummy
        import sklearn.ensemble
        import sklearn.linear_model
        import sklearn.pipeline
        import sklearn.preprocessing
    except ImportError:
        raise MissingExtraError("scikit-learn", "table", "baselines of a table") from None
    return sklearn
