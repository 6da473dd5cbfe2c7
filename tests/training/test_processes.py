import pytest

from tests.training.processes import run_small

CASES = {
    # the last batch (21 = 2 * 8 + 5, then 1 sample) is uneven; a third of the labels is missing
    "rotograd": {"method": "rotograd", "data": {"size": 21, "missing": 0.35}},
    "uneven": {"method": "pcgrad", "data": {"size": 33, "missing": 0.6}},
    "accumulated": {
        "method": "gradnorm",
        "gradient_accumulation_steps": 2,
        "max_grad_norm": 0.5,
        "data": {"size": 40},
    },
    "preference": {
        "method": "normalize+sum",
        "preference": "lora(rank=2)",
        "data": {"size": 33, "missing": 0.6},
    },
}


QUICK = ("rotograd", "accumulated")


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c in QUICK else pytest.mark.slow) for c in CASES]
)
def test_two_processes_end_with_the_parameters_of_one(case, tmp_path):
    options = {**CASES[case], "fit": {"epochs": 1}}
    one = run_small(tmp_path, options, 1)
    two = run_small(tmp_path, options, 2)
    assert one["step"] == two["step"] > 1
    difference = (one["parameters"] - two["parameters"]).abs().max()
    assert difference < 1e-5
    for task, metrics in one["metrics"].items():
        for metric, value in metrics.items():
            assert two["metrics"][task][metric] == pytest.approx(value, abs=1e-5), (task, metric)
