"""The rules: what is looked for, the figure that shows it, what to try, and why.

A rule's ``figure`` gives the sentence with the figures where the condition of ``when`` holds, and None
where it does not, so there is no advice without a figure. :data:`RULES` is in the order of the
findings: what makes other figures void comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mtlkit.diagnosis import sentences as found
from mtlkit.diagnosis.figures import Figures

Kind = Literal["repair", "note"]


@dataclass(frozen=True)
class Rule:
    """One row of the table."""

    name: str
    when: str
    figure: Callable[[Figures], str | None]
    advice: str
    why: str
    kind: Kind = "repair"


@dataclass(frozen=True)
class Finding:
    """A rule that applies, with the figures that show it."""

    rule: str
    kind: Kind
    figure: str
    advice: str
    why: str

    def __str__(self) -> str:
        return f"{self.figure}\n  try  {self.advice}\n  why  {self.why}"


RULES: tuple[Rule, ...] = (
    Rule(
        "not finite",
        "a loss or gradient is infinite or NaN",
        found.not_finite,
        "a lower learning rate, `max_grad_norm` or float32; check the data of those batches",
        "these steps were left out, so the figures below may not be those of your run",
    ),
    Rule(
        "no labels",
        "a task has no label in the whole run",
        found.without_labels,
        "check the names of the targets and how missing labels are encoded, or leave the task out",
        "a task without labels has no loss, and its head is never trained",
    ),
    Rule(
        "unreached",
        "a task with labels has no gradient where tasks share",
        found.unreached,
        "look for detach(), a frozen part, a saturated loss, or a head that does not read its own view "
        "of method(features)",
        "the shared layers learn nothing from it, and no method can change that",
    ),
    Rule(
        "one task per batch",
        "no batch has labels of two tasks",
        found.single_batches,
        "batches of all tasks; for sources, `batches=all`",
        "a method is given one gradient at a time, and has nothing to merge",
    ),
    Rule(
        "different samples",
        "two tasks are never labeled on the same sample",
        found.different_samples,
        "methods with `wrt=parameters`, such as `cagrad(wrt=parameters)`",
        "at the features a gradient has a row per sample, so theirs are orthogonal whatever they want; "
        "only at the parameters do they meet",
    ),
    Rule(
        "no fork",
        "the model does not call method(features)",
        found.no_fork,
        "`wrt=parameters` with every method named here, as in `cagrad(wrt=parameters)`; `rotograd` "
        "needs a fork",
        "without features to merge at, gradients of the parameters are merged, at a backward per task",
        kind="note",
    ),
    Rule(
        "few labels",
        f"a task has fewer than {found.FEW_LABELS:.0%} of the labels of another",
        found.few_labels,
        "sample its data more often, or use larger batches; then diagnose again",
        "the gradient of a few labels is mostly noise, and no method can tell it from a signal",
    ),
    Rule(
        "different norms",
        f"gradient norms differ {found.NORM_RATIO:.0f} x or more",
        found.different_norms,
        "`scale`, `imtl_g` or `normalize` before anything else; or losses in other units",
        "a sum follows the largest gradient: the other tasks hardly move what is shared, and whatever "
        "conflicts with it loses",
    ),
    Rule(
        "drifting norms",
        f"the ratio of two norms changes {found.NORM_DRIFT:.0f} x during the run",
        found.drifting_norms,
        "weights that adapt: `gradnorm`, `imtl_g` or `scale`, rather than fixed ones",
        "weights that fit the beginning do not fit the end",
    ),
    Rule(
        "rising losses",
        f"a loss ends more than {found.LOSS_RISE:.0%} above where it began, beyond chance",
        found.rising_losses,
        "first a lower learning rate; then the task alone, to see whether it can be learned",
        "every task must be able to improve on its own before a method can be judged",
    ),
    Rule(
        "lasting conflicts",
        f"a pair conflicts in {found.LASTING_SHARE:.0%} of the steps or more, with a mean cosine of "
        f"{found.LASTING_COSINE} or less",
        found.lasting_conflicts,
        "`rotograd`, `cagrad` or `upgrad`; or more room of their own: `mmoe`, `ple`, `mtan`",
        "the tasks want different things of the shared layers, step after step",
    ),
    Rule(
        "costly others",
        f"the others take back {-found.COST:.0%} or more of a task's own decrease, also at equal norms",
        found.costly_others,
        "`nash_mtl`, `cagrad` or `upgrad`, which let no task pay for others; or a larger weight for it",
        "to first order, a step by the sum lowers its loss that much less than a step of its own would",
    ),
    Rule(
        "groups",
        f"tasks agree within groups, by {found.GROUP_GAP} more than between them",
        found.task_groups,
        "one network per group, or branches: `ltb`, `mmoe`, `ple`",
        "what a group gains by sharing it does not gain from the other groups",
    ),
    Rule(
        "dead features",
        f"{found.DEAD_SHARE:.0%} of the shared features or more never change",
        found.dead_features,
        "a lower learning rate, normalization before the activation, a leaky one, or a narrower layer",
        "no task can read anything from them, and behind a ReLU no gradient revives them",
    ),
    Rule(
        "chance conflicts",
        f"a pair conflicts now and then, with a mean cosine within {found.CHANCE_COSINE} of zero",
        found.chance_conflicts,
        "larger batches rather than a method against conflicts",
        "the tasks are orthogonal on average: the conflicts are those of the batches, not of the tasks",
        kind="note",
    ),
    Rule(
        "help",
        f"a task brings another {found.HELP:.0%} or more of its own decrease, at a mean cosine of "
        f"{found.HELP} or more",
        found.helpful_pairs,
        "keep them in one network",
        "to first order, a step for the one is a step for the other",
        kind="note",
    ),
)

NOTHING = Rule(
    "nothing",
    "none of the rules above asks for a repair",
    found.nothing,
    "the plain sum, with tuned weights (`mtlkit tune`)",
    "no figure shows what another method would repair, and a tuned sum is hard to beat",
    kind="note",
)


def apply_rules(figures: Figures) -> list[Finding]:
    """The findings of all rules; that nothing needs repair is one of them."""
    findings = [
        Finding(rule.name, rule.kind, text, rule.advice, rule.why)
        for rule in RULES
        if (text := rule.figure(figures)) is not None
    ]
    if not any(finding.kind == "repair" for finding in findings):
        text = NOTHING.figure(figures) or ""
        findings.insert(0, Finding(NOTHING.name, NOTHING.kind, text, NOTHING.advice, NOTHING.why))
    return findings
