"""The verdict: what it claims by hand, and that it claims nothing where there is nothing."""

import math

import numpy as np

from mtlkit.report.results import Comparison, Run, TaskRecord
from mtlkit.report.tables import build_table, to_latex, to_markdown
from mtlkit.report.verdict import judge

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


def test_methods_without_a_finite_result_are_not_spoken_for_against_single_task_networks():
    made = drawn({"bad": -0.1, "broken": 0.1}, single=0.05)
    assert "does not pay here: every method is worse." in judge(drawn({"bad": -0.1}, single=0.05)).text
    for run in made.runs:
        if run.label == "broken":
            run.metrics["a"]["accuracy"] = math.nan
    last = judge(made).sentences[-1]
    assert "costs with bad and sum" in last or "costs with sum and bad" in last
    assert last.endswith("; the other methods have no finite result to test.")


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


def test_what_is_worse_is_significant_and_so_not_said_to_be_unknown():
    found = judge(drawn({"bad": -0.1}, seeds=10))
    assert "nothing is significant" not in found.text
    made = drawn({"same": 0.0, "bad": -0.1}, seeds=6)
    made.runs = [run for run in made.runs if run.label != "single-task"]  # there is no mean over tasks
    found = judge(made)
    assert (found.worse, found.undecided) == (("bad",), ("same",))
    assert "bad is worse than sum on a and b; 6 seeds cannot tell whether same differs" in found.text


def test_a_loss_on_one_task_is_told_though_the_mean_is_level():
    tasks = [TaskRecord(str(k), {"m": True}) for k in range(6)]
    found = judge(drawn({"x": [-0.03, *[0.002] * 5]}, 8, 0.004, tasks=tasks))
    assert (found.worse, found.level) == (("x",), ())
    assert "x is worse than sum on 0" in found.text
    lost = judge(drawn({"greedy": [0.05, -0.3]}, seeds=8))
    assert "greedy beats sum on a; but greedy is worse on b and in the mean over tasks" in lost.text


def failing(made, label, seeds):
    for run in made.runs:
        if run.label == label and run.seed in seeds:
            run.metrics = {task.name: {task.main_metric: math.nan} for task in made.tasks}
    return made


def test_runs_without_a_result_are_told_and_ask_for_no_seeds():
    found = judge(failing(drawn({"x": 0.05, "y": 0.0}), "x", (1, 2, 3, 4)))
    assert (found.untested, found.undecided) == (("x",), ())
    assert "x is not tested; no finite result of x on 4 of 5 seeds" in found.text
    assert "1000 seeds" not in found.text
    some = judge(failing(drawn({"x": 0.05, "y": 0.05}), "x", (2, 3, 4)))
    assert "No finite result of x on 3 of 5 seeds." in some.sentences
    alone = judge(failing(drawn({"x": 0.05}), "x", (3, 4)))
    assert ", on 3 of 5 seeds)" in alone.sentences[-1]  # of what pays


def test_seeds_without_an_improvement_are_told_though_the_methods_have_results():
    gap = "no finite improvement over single-task on 3 of 6 seeds"
    failed = drawn({"x": 0.0}, seeds=6, noise=0.05)
    zero = drawn({"x": 0.0}, seeds=6, noise=0.05)
    for made in (failed, zero):
        assert gap not in judge(made).text
    for run in failed.runs:
        if run.label == "single-task" and run.seed < 3:
            run.status = "failed"
    for run in zero.runs:
        if run.label == "single-task" and run.seed < 3:
            run.metrics["a"]["accuracy"] = 0.0
    for made in (failed, zero):
        assert gap in judge(made).text
        assert "no finite result" not in judge(made).text
    assert "no finite result of x on 1 of 6 seeds" in judge(failing(failed, "x", (0,))).text


def test_the_lead_to_confirm_is_that_of_the_methods_that_are_undecided():
    made = drawn({"sure": [0.5, -0.3], "maybe": 0.03}, seeds=4, noise=0.03)
    found = judge(made)
    assert found.undecided == ("maybe",)
    assert "to confirm the largest mean lead among these, +" in found.text


def test_a_task_with_a_methods_name_is_said_to_be_a_task():
    tasks = [TaskRecord("sum", {"m": True}), TaskRecord("b", {"m": True})]
    assert "x beats sum on the task sum; but" in judge(drawn({"x": [0.1, -0.1]}, 6, tasks=tasks)).text


def test_few_seeds_are_said_to_be_few_also_where_they_suffice():
    assert "over 3 tests on only 3 seeds, x beats sum" in judge(drawn({"x": 0.2}, seeds=3)).text
    assert "only" not in judge(drawn({"x": 0.2}, seeds=5)).text


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
