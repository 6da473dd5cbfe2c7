"""The verdict: what it claims by hand, and that it claims nothing where there is nothing."""

import math

import numpy as np

from mtlkit.evaluation.results import Comparison, Run, TaskRecord
from mtlkit.evaluation.tables import build_table, to_latex, to_markdown
from mtlkit.evaluation.verdict import judge

TASKS = [TaskRecord("a", {"accuracy": True}), TaskRecord("b", {"mse": False})]


def drawn(gains, seeds=5, noise=0.002, single=0.0, tasks=TASKS, random=None, **more):
    """Methods whose metrics are better than the sum's by ``gains``, relatively, in every task."""
    random = np.random.default_rng(0) if random is None else random
    made = Comparison("drawn", tasks, baseline="single-task", reference="sum", **more)
    for seed in range(seeds):
        shared = 1 + noise * random.standard_normal(len(tasks))  # a seed makes a task easier for all
        for label, gain in {"single-task": single, "sum": 0.0, **gains}.items():
            metrics = {}
            for place, task in enumerate(tasks):
                factor = shared[place] * (1 + noise * random.standard_normal())
                shift = np.broadcast_to(gain, len(tasks))[place]
                value = 0.8 * factor * (1 + shift if task.higher_is_better else 1 - shift)
                metrics[task.name] = {task.main_metric: float(value)}
            made.runs.append(Run(label, seed, metrics=metrics))
    return made


def test_a_clear_winner_is_named_with_its_interval():
    found = judge(drawn({"rotograd": 0.05, "pcgrad": 0.0}, single=0.02))
    assert found.winners == ("rotograd",)
    start = (
        "After Holm's correction over 6 tests, rotograd beats sum in the mean over tasks by +4.99 points"
    )
    assert found.sentences[0] == f"{start} (95 % interval +4.88 to +5.11)."
    assert found.pays == ("rotograd",)
    assert "pays with rotograd" in found.sentences[2]
    assert "costs with sum and pcgrad" in found.sentences[2]
    assert len(found.sentences) == 3


def test_level_worse_and_undecided_are_told_apart():
    found = judge(drawn({"same": 0.0, "bad": -0.1}, seeds=10))
    assert (found.winners, found.level, found.worse) == ((), ("same",), ("bad",))
    assert "Nothing is shown to beat sum" in found.text
    assert "bad is worse than sum; same is level with sum (within 1 point)." in found.sentences
    noisy = judge(drawn({"maybe": 0.03, "behind": -0.02}, seeds=3, noise=0.05))
    assert noisy.undecided == ("maybe", "behind")
    assert "Only 3 seeds cannot tell whether maybe and behind differ from sum" in noisy.text
    assert "seeds)" in noisy.text


def test_a_winner_on_one_task_that_loses_another_is_said_to_do_both():
    found = judge(drawn({"greedy": [0.1, -0.1]}, seeds=6))
    assert found.winners == ("greedy",)
    assert "greedy beats sum on a; but greedy is worse on b" in found.sentences[0]


def test_one_seed_gives_no_verdict_on_anything():
    found = judge(drawn({"rotograd": 0.5}, seeds=1))
    assert found.sentences == (
        "One seed says nothing about chance, so there is no verdict: take five seeds or more.",
    )
    assert found.winners == ()


def test_equal_differences_of_a_coarse_metric_are_no_proof():
    made = Comparison("x", TASKS[:1], reference="sum")
    for seed in range(3):
        made.runs.append(Run("sum", seed, metrics={"a": {"accuracy": 0.5}}))
        made.runs.append(Run("lucky", seed, metrics={"a": {"accuracy": 0.515625}}))
    assert build_table(made).rows[1].cells["a/accuracy"].dagger  # the t-test alone is certain
    assert judge(made).winners == ()


def test_a_winner_on_fewer_seeds_is_said_to_be_so():
    made = drawn({"fragile": 0.08}, seeds=6)
    for run in made.runs:
        if run.label == "fragile" and run.seed > 3:
            run.status, run.error = "failed", "NaN"
    assert "on 4 of 6 seeds" in judge(made).sentences[0]
    table = build_table(made)
    cell = table.rows[2].cells["delta/mean"]
    assert cell.marks == "‡*"
    assert "‡\\*" in to_markdown(table)
    assert "over fewer seeds" in to_markdown(table)


def test_more_than_three_winners_are_summed_up():
    found = judge(drawn({name: 0.05 + 0.01 * k for k, name in enumerate("pqrs")}, seeds=6))
    assert found.winners == ("p", "q", "r", "s")
    assert "p, q, r and s beat sum in the mean over tasks by +" in found.sentences[0]


def test_without_reference_baseline_or_rivals_there_is_less_to_say():
    made = drawn({"x": 0.05})
    made.reference = None
    assert judge(made).winners == ()
    assert len(judge(made).sentences) == 1
    made = drawn({"x": 0.1}, seeds=6)
    made.runs = [run for run in made.runs if run.label != "single-task"]
    assert "tests, x beats sum on a and b." in judge(made).sentences[0]
    made.runs = [run for run in made.runs if run.label == "x"]
    assert judge(made).sentences == ()
    assert judge(Comparison("empty", TASKS)).sentences == ()
    broken = drawn({"x": 0.1})
    for run in broken.runs:
        if run.label == "sum":
            run.metrics = {"a": {"accuracy": math.nan}}
    assert "nothing is tested yet" in judge(broken).sentences[0]


def test_the_verdict_stands_above_the_tables():
    table = build_table(drawn({"rotograd": 0.05}))
    assert to_markdown(table).startswith("After Holm's correction over 3 tests, rotograd beats sum")
    assert to_latex(table).startswith("% After Holm's correction over 3 tests, rotograd beats sum")


def test_no_winner_is_claimed_in_more_than_a_twentieth_of_comparisons_without_one():
    """Every method is the plain sum: 200 comparisons of 2 to 8 methods, 2 to 6 tasks, 3 to 10 seeds.

    In every second one the metrics are rounded to 1/500, as those of a small test set are. The tests are
    two-sided at 5 %, so a false winner has 2.5 % at most, as has a false loser: 5 of 200 are expected, and
    more than 10, which is 5 %, come up in 1.4 % of such draws.
    """
    random = np.random.default_rng(7)
    winners = pays = 0
    for number in range(200):
        tasks = [TaskRecord(str(k), {"m": bool(k % 2)}) for k in range(random.integers(2, 7))]
        gains = {f"sum{k}": 0.0 for k in range(random.integers(1, 8))}
        made = drawn(gains, int(random.integers(3, 11)), random.uniform(0.001, 0.1), 0.0, tasks, random)
        if number % 2:
            for run in made.runs:
                run.metrics = {
                    name: {"m": round(row["m"] * 500) / 500} for name, row in run.metrics.items()
                }
        found = judge(made)
        winners += bool(found.winners)
        pays += bool(found.pays)
        claimed = "Nothing is shown to beat sum" not in found.sentences[0]
        assert claimed == bool(found.winners)
    assert winners <= 10
    assert pays <= 10
