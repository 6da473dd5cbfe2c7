"""Baselines of a table: a constant, ridge regression, a random forest and boosted trees."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtlkit.config.extras import import_extra
from mtlkit.data.base import DataSet
from mtlkit.errors import unknown_name
from mtlkit.tasks import Task

Scores: TypeAlias = dict[str, dict[str, float]]
"""Metrics by task and name, like the test metrics of a run."""
MODELS = ("constant", "ridge", "forest", "boosting")
_MOST_ROWS = 20_000  # per tree
_SMALLEST = 1e-6  # smallest probability, so that its logarithm is finite


def fit_baselines(dataset: DataSet, numbers: int, models: Sequence[str] = MODELS) -> dict[str, Scores]:
    """Fit each model for each task on the training samples, and evaluate it on the test samples.

    Args:
        dataset: data set whose splits have inputs (N, d): numbers, then codes of categories.
        numbers: how many inputs are numbers; the codes after them are one-hot encoded for ``ridge``.
        models: some of ``constant`` (the mean, or the class frequencies), ``ridge`` (for classes,
            logistic regression), ``forest`` (200 trees) and ``boosting`` (boosted trees).

    Returns:
        The loss and the task's metrics, by model and task, without tasks of unsupported kinds and tasks
        without a training label.
    """
    import_extra("sklearn", "baselines of a table")
    train: Any = dataset.train
    test: Any = dataset.test
    found: dict[str, Scores] = {}
    for name in models:
        if name not in MODELS:
            raise unknown_name("baseline", name, MODELS)
        found[name] = {}
        for task in dataset.tasks:
            target = train.targets[task.name]
            prediction = _predict(name, task, numbers, train.inputs, target, test.inputs)
            if prediction is not None:
                found[name][task.name] = score(task, prediction, test.targets[task.name])
    return found


def score(task: Task, prediction: Tensor, target: Tensor) -> dict[str, float]:
    """Return the loss and metrics of predictions for all samples; NaN without a label."""
    loss, _ = task.measure(prediction, target)
    metrics = task.make_metrics()
    task.update(metrics, prediction, target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a metric without any label
        values = task.compute(metrics)
    if loss is None:
        return dict.fromkeys(("loss", *values), float("nan"))
    return {"loss": float(loss), **values}


def _predict(
    name: str, task: Task, numbers: int, inputs: Tensor, target: Tensor, rows: Tensor
) -> Tensor | None:
    """Return predictions like those of the task's head: numbers or logits."""
    if task.kind not in ("regression", "classification", "binary", "multilabel"):
        return None
    x, new = inputs.double().numpy(), rows.double().numpy()
    columns = []
    for column in target.reshape(len(target), -1).double().numpy().T:
        known = np.isfinite(column) if task.kind == "regression" else column >= 0
        if not known.any():
            return None
        if task.kind == "regression":
            model = _make(name, numbers, x.shape, classes=False)
            columns.append(torch.from_numpy(model.fit(x[known], column[known]).predict(new)))
            continue
        classes = task.outputs or 2 if task.kind == "classification" else 2
        answers = column[known].astype(np.int64)
        logits = _class_logits(name, numbers, x[known], answers, new, classes)
        if task.kind == "classification":
            return logits
        columns.append(logits[:, 1] - logits[:, 0])
    return torch.stack(columns, dim=1).float()


def _class_logits(
    name: str, numbers: int, x: Any, y: NDArray[np.int64], new: Any, classes: int
) -> Tensor:
    """Return the log-probabilities (N, classes); classes without a training sample are least likely."""
    found = np.full((len(new), classes), _SMALLEST)
    if len(np.unique(y)) == 1:
        found[:, y[0]] = 1
    else:
        model = _make(name, numbers, x.shape, classes=True).fit(x, y)
        found[:, model.classes_] = np.maximum(model.predict_proba(new), _SMALLEST)
    return torch.from_numpy(found / found.sum(axis=1, keepdims=True)).log().float()


def _make(name: str, numbers: int, shape: tuple[int, int], classes: bool) -> Any:
    """Make a deterministic model of scikit-learn."""
    from sklearn import dummy, ensemble, linear_model
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    rows, inputs = shape
    kind = "Classifier" if classes else "Regressor"
    if name == "constant":
        return getattr(dummy, f"Dummy{kind}")(strategy="prior" if classes else "mean")
    if name == "forest":
        most = _MOST_ROWS if rows > _MOST_ROWS else None
        forest = getattr(ensemble, f"RandomForest{kind}")
        return forest(n_estimators=200, random_state=0, max_samples=most)
    if name == "boosting":
        return getattr(ensemble, f"HistGradientBoosting{kind}")(random_state=0)
    one_hot = ("codes", OneHotEncoder(handle_unknown="ignore"), list(range(numbers, inputs)))
    logistic, ridge = linear_model.LogisticRegression, linear_model.RidgeCV
    last = logistic(max_iter=1000) if classes else ridge(np.logspace(-3, 3, 13))
    return make_pipeline(ColumnTransformer([one_hot], remainder="passthrough"), last)
