"""check_method names the law that a method breaks, and passes correct methods."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import mtlkit
from mtlkit.engine.gram import norms_of, safe_divide
from mtlkit.errors import SpecError, UnknownNameError
from mtlkit.testing import LAWS, check_method, step_laws
from mtlkit.testing.methods import _CHECKS
from tests.testing.broken_methods import BROKEN, KEPT_BY_THE_ENGINE

FAST = [law for law in LAWS if law not in ("distributed", "compiled")]


class SmoothedNorm(mtlkit.GradientAggregator):
    """Weigh by the inverse of a running mean of the norms."""

    def __init__(self, tasks, *, decay: float = 0.9, **common):
        super().__init__(tasks, **common)
        self.decay = decay
        self.add_state("norms", 0.0)

    def weigh(self, gram, state):
        now = norms_of(gram)
        mean = torch.where(state.norms == 0, now, self.decay * state.norms + (1 - self.decay) * now)
        return safe_divide(mean.mean(), mean), state.replace(norms=mean)


def test_every_law_has_a_sentence_and_a_method_that_breaks_it():
    assert BROKEN.keys() | KEPT_BY_THE_ENGINE == LAWS.keys()
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in LAWS.values())


@pytest.mark.parametrize("law", BROKEN)
def test_a_broken_law_is_named(law, monkeypatch):
    # Inductor takes ten seconds; test_a_correct_method_passes uses it
    quick = partial(step_laws.compiled, backends=["aot_eager"])
    monkeypatch.setitem(_CHECKS, "compiled", quick)
    with pytest.raises(AssertionError, match=f"^{law}: {BROKEN[law].__name__} with 3 tasks, seed 5: "):
        check_method(BROKEN[law], laws=[law], seed=5, examples=4)


@pytest.mark.parametrize("law", BROKEN)
def test_a_method_that_breaks_one_law_passes_all_others(law):
    check_method(BROKEN[law], laws=[other for other in FAST if other != law], examples=4)


def test_a_correct_method_passes_with_and_without_a_name_and_with_options():
    check_method(SmoothedNorm, distributed=True, compiled=True, decay=0.5)
    check_method(SmoothedNorm, tasks=2, examples=4)
    with mtlkit.config.registry.methods.temporary():
        mtlkit.register_method("smoothed_norm_for_test")(SmoothedNorm)
        check_method(SmoothedNorm, examples=4)
        check_method("smoothed_norm_for_test", examples=4, decay=0.5)
        check_method("normalize+smoothed_norm_for_test(decay=0.5)", examples=4)
    del SmoothedNorm.name


def weighing(hook):
    """Return a class with this hook ``weigh`` and one declared state."""

    def __init__(self, tasks, **common):
        mtlkit.GradientAggregator.__init__(self, tasks, **common)
        self.add_state("norms", 0.0)

    return type("Wrong", (mtlkit.GradientAggregator,), {"__init__": __init__, "weigh": hook})


def forgets_the_new_state(self, gram, state):
    state.replace(norms=norms_of(gram))
    return torch.ones_like(gram[0]), state


def changes_the_state(self, gram, state):
    state.norms.add_(norms_of(gram))
    return torch.ones_like(gram[0]), state


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (lambda self, gram, state: torch.ones_like(gram[0]), "a tensor and the state, not Tensor"),
        (lambda self, gram, state: ([1.0] * len(gram), state), "the state, not list, State"),
        (lambda self, gram, state: (torch.ones(4, 1), state), r"shape \(4, 1\), not \(3,\)"),
        (lambda self, gram, state: (gram[0] * torch.nan, state), "not finite"),
        (lambda self, gram, state: (gram[0], state.replace(norm=gram[0])), "norm: declare it"),
        (forgets_the_new_state, "weigh replaced norms, but returned the old state"),
        (changes_the_state, "changed the state that it was given"),
    ],
)
def test_the_first_law_says_what_is_wrong_with_the_result_of_a_hook(hook, message):
    with pytest.raises(AssertionError, match=f"^hooks: Wrong with 3 tasks, seed 0: .*{message}"):
        check_method(weighing(hook))


def test_a_fork_without_a_view_for_each_task_is_named():
    class Fork(mtlkit.GradientAggregator):
        def fork(self, features, *held):
            return [features]

    with pytest.raises(AssertionError, match=r"^hooks: Fork .* must return 3 lists"):
        check_method(Fork)


def test_a_waived_law_is_not_checked():
    class Waives(BROKEN["single_task"]):
        waived_laws = {"single_task": "a sum of one, twice"}

    check_method(Waives, examples=4)
    with pytest.raises(AssertionError, match="single_task"):
        check_method(BROKEN["single_task"], examples=4)


def test_unknown_laws_options_and_methods_are_errors():
    class Waives(BROKEN["single_task"]):
        waived_laws = {"singel_task": "misspelled"}

    class GivesNoReason(BROKEN["single_task"]):
        waived_laws = {"single_task": " "}

    with pytest.raises(UnknownNameError, match="unknown law 'singel_task'; did you mean 'single_task'"):
        check_method(Waives)
    with pytest.raises(SpecError, match="without a reason"):
        check_method(GivesNoReason)
    with pytest.raises(UnknownNameError, match="unknown law 'scales'; did you mean 'scale'"):
        check_method("sum", laws=["scales"])
    with pytest.raises(UnknownNameError, match="unknown method"):
        check_method("summ")
    with pytest.raises(UnknownNameError, match="unknown option"):
        check_method("sum", power=2)
    with pytest.raises(SpecError, match="at least two tasks"):
        check_method("sum", tasks=1)
    with pytest.raises(SpecError, match="float64"):
        check_method("sum", dtype=torch.float16)


def test_laws_about_other_numbers_of_tasks_are_left_out_where_options_fix_the_number():
    laws = [law for law in FAST if law != "permutation"]
    check_method("constant(weights=[1, 2, 3])", laws=laws, examples=4)


def test_an_error_inside_of_a_method_is_reported_as_a_broken_law():
    class Fails(mtlkit.GradientAggregator):
        def weigh(self, gram, state):
            raise ZeroDivisionError("no luck")

    with pytest.raises(AssertionError, match=r"^hooks: Fails .*ZeroDivisionError: no luck"):
        check_method(Fails)


def test_a_class_that_other_processes_cannot_import_is_refused():
    class Local(BROKEN["single_task"]):
        pass

    with pytest.raises(AssertionError, match=r"^distributed: .*top level of a module"):
        check_method(Local, laws=["distributed"])


def test_the_random_state_of_the_caller_is_unchanged():
    before = torch.random.get_rng_state()
    check_method("pcgrad", examples=4)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "laws"), [("moco", {"scale", "single_task"}), ("db_mtl", {"single_task"})]
)
def test_a_method_may_waive_a_law_for_some_of_its_options(name, laws):
    assert not mtlkit.create_method(name, 3).merging.waived_laws
    assert mtlkit.create_method(name, 3, wrt="parameters").merging.waived_laws.keys() == laws
    for law in laws:
        check_method(name, laws=[law])
    check_method(name, laws=["single_task", "scale", "nonfinite"], wrt="parameters")


def test_a_method_that_is_made_already_is_refused():
    with pytest.raises(SpecError, match="name or the class"):
        check_method(mtlkit.create_method("pcgrad", 3))


def test_a_class_that_is_no_method_is_refused():
    with pytest.raises(SpecError, match="dict is not a method: a method is a GradientAggregator"):
        check_method(dict)
