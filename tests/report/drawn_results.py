"""Results drawn at random, in the shape that real ones have."""

import numpy as np

from mtlkit.report.histories import HistoryRow, MonitorRow
from mtlkit.report.results import Comparison, Run, TaskRecord

METHODS = ("single-task", "sum", "pcgrad", "mgda", "gradnorm", "imtl_g", "graddrop", "rotograd")
TASKS = [
    TaskRecord("left", {"accuracy": True}),
    TaskRecord("right", {"accuracy": True}),
    TaskRecord("parity", {"f1": True, "accuracy": True}),
    TaskRecord("digit_sum", {"mse": False, "mae": False}),
    TaskRecord("pixels", {"mse": False, "mae": False}),
]
_LEVELS = {"left": 0.95, "right": 0.93, "parity": 0.92, "digit_sum": 2.0, "pixels": 0.1}


def draw_comparison(methods=METHODS, seeds=5, epochs=12, tasks=TASKS, monitor=60) -> Comparison:
    random = np.random.default_rng(0)
    runs = []
    for place, label in enumerate(methods):
        for seed in range(seeds):
            metrics, rates = {}, {}
            for task in tasks:
                level = _LEVELS.get(task.name, 0.8)
                skill = 1 + 0.012 * place * (1 if task.higher_is_better else -1) / 2
                value = level * skill * (1 + 0.01 * random.standard_normal())
                metrics[task.name] = dict.fromkeys(task.metrics, float(value))
                rates[task.name] = random.uniform(0.2, 0.5)
            run = Run(
                label,
                seed,
                metrics=metrics,
                method=label if label != "single-task" else "",
                step_ratio=None if label == "single-task" else 1 + 0.04 * place + 0.01 * random.random(),
                seconds=20 + 3 * place + random.random(),
            )
            for epoch in range(1, epochs + 1):
                losses = {
                    name: float(2 * np.exp(-rate * epoch) + 0.1 + 0.02 * random.random())
                    for name, rate in rates.items()
                }
                run.history.append(HistoryRow(epoch * 30, epoch, "train", losses))
                shown = {
                    name: {
                        metric: value
                        * (1 - np.exp(-rates[name] * epoch) if _LEVELS[name] < 1 else 1 + 2 / epoch)
                        for metric, value in row.items()
                    }
                    | {"loss": losses[name] * 1.1}
                    for name, row in metrics.items()
                }
                run.history.append(
                    HistoryRow(epoch * 30, epoch, "val", {n: r["loss"] for n, r in shown.items()}, shown)
                )
            if label != "single-task":
                for index in range(monitor):
                    noise = random.standard_normal(len(tasks))
                    cosines = 0.3 + 0.05 * place + 0.04 * noise
                    run.monitor.append(
                        MonitorRow(
                            (index + 1) * 6,
                            {
                                t.name: float(np.exp(n * 0.3 - k))
                                for k, (t, n) in enumerate(zip(tasks, noise, strict=False))
                            },
                            {t.name: float(c) for t, c in zip(tasks, cosines, strict=False)},
                            {t.name: float(1 + 0.1 * n) for t, n in zip(tasks, noise, strict=False)},
                            float(0.4 - 0.03 * place + 0.02 * noise[0]),
                            {t.name: 20 * (1 - np.exp(-index / 20)) for t in tasks}
                            if label == "rotograd"
                            else {},
                        )
                    )
            runs.append(run)
    return Comparison(
        "multidigits: 8 methods",
        list(tasks),
        runs,
        config={"data": "multidigits", "methods": list(methods), "epochs": epochs, "batch_size": 128},
        versions={"mtlkit": "0.1.0", "torch": "2.15.0", "python": "3.11"},
        baseline="single-task",
        reference="sum",
    )
