"""The table from symptom to method: the rules of the diagnosis, and what our own results say about them."""

from __future__ import annotations

from mtlkit.diagnosis.rules import NOTHING, RULES

# By rule: folders of benchmarks/results and what was found there. The numbers are those of the folder's README.
EVIDENCE: dict[str, tuple[tuple[str, str], ...]] = {
    "different norms": (
        (
            "units_ten",
            "ten seeds: `normalize+sum` +63.7, `imtl_g` +65.9, `famo` +68.2 points over the sum on "
            "four tasks, significant after correction; left digit 95.6% with `imtl_g` instead of 61.0%",
        ),
    ),
    "drifting norms": (
        (
            "units",
            "a warning about `gradnorm`: at the paper's rate it is too slow, 60% for the left digit",
        ),
    ),
    "rising losses": (
        (
            "cifar10",
            "rotations whose rate did not decay: the training loss rose from 2.5 to 3.5 (runs discarded)",
        ),
    ),
    "lasting conflicts": (
        ("toys", "opposite tasks: `rotograd` solves both on 84 of 200 seeds, the sum on 0"),
        (
            "multimnist",
            "not decided: `rotograd` from random rotations +1.2 points over the sum, from the identity -1.1",
        ),
    ),
    "canceled progress": (
        (
            "multidigits_tuned",
            "no gain: `cagrad` -3.4 and `nash_mtl` -4.5 points relative to a tuned sum, not decided",
        ),
    ),
    "small conflicts": (
        ("census", "orthogonal tasks: over ten seeds, no method is better than the sum"),
    ),
    "nothing": (
        (
            "multidigits_tuned",
            "ten seeds, the same number of trials: no method's mean is above the tuned sum's",
        ),
        ("census", "no method is better than the sum"),
    ),
}
# Numbers that are not in benchmarks/results.
ELSEWHERE = {
    "no fork": "[Speed](speed.md): `upgrad(wrt=parameters)` takes 2.6 and 7.7 × a plain step at K = 3 and 10",
}
NONE = "not tested by us"


def rules_table() -> str:
    """Return the rules in their order, in Markdown."""
    rules = (*RULES, NOTHING)
    unknown = ({*EVIDENCE} | {*ELSEWHERE}) - {rule.name for rule in rules}
    if unknown:
        raise ValueError(f"evidence for rules that do not exist: {', '.join(sorted(unknown))}")
    lines = ["```{table}", ":class: rules", ""]
    lines += ["| what you see | what to try | why | our evidence |", "|---|---|---|---|"]
    lines += [f"| {rule.when} | {rule.advice} | {rule.why} | {_evidence(rule.name)} |" for rule in rules]
    return "\n".join([*lines, "```", ""])


def _evidence(rule: str) -> str:
    found = [f"[{folder}](results/{folder}.md): {text}" for folder, text in EVIDENCE.get(rule, ())]
    return ". ".join([*found, *filter(None, [ELSEWHERE.get(rule)])]) or NONE
