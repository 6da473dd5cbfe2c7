"""Bad input gets an error that says what was given, what is accepted and what to do."""

from __future__ import annotations

import pytest
import torch

import mtlkit
from mtlkit.errors import SpecError, UnknownNameError, UsageError


def features():
    return torch.randn(4, 3, requires_grad=True) * 1.0


def test_a_wrong_name_is_answered_with_the_nearest_and_all_names():
    with pytest.raises(
        UnknownNameError, match=r"unknown method 'pcgad'; did you mean 'pcgrad'.*known: .*mgda"
    ):
        mtlkit.create_method("pcgad", 2)


def test_a_wrong_option_is_answered_with_the_options_there_are():
    with pytest.raises(
        UnknownNameError, match=r"unknown option of gradnorm 'alfa'; did you mean 'alpha'"
    ):
        mtlkit.create_method("gradnorm(alfa=1)", 2)
    with pytest.raises(UnknownNameError, match="unknown option of pcgrad 'alpha'"):
        mtlkit.create_method("pcgrad", 2, alpha=1)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gradnorm(alpha=high)", "must be a number, not 'high'"),
        ("gradnorm(alpha=-1)", "alpha of gradnorm must be 0 or more"),
        ("pcgrad(wrt=weights)", "must be one of 'features', 'parameters', not 'weights'"),
        ("pcgrad(seed=1.5)", "must be a whole number"),
        ("scale(burn_in=-1)", "burn_in of scale must be 0 or more"),
        ("pcgrad+mgda", "'pcgrad' and 'mgda' both merge the gradients"),
        ("rotate(size=2)+rotate(size=2)", "both fork the features"),
        ("normalize(wrt=parameters)", "unknown option of normalize 'wrt'"),
        ("constant(weights=[1, 2, 3])", "must be 2 numbers"),
        ("constant(weights={third: 1})", "unknown task 'third'"),
        ("rotate", "feature_dim"),
        ("rotate(size=9)", "between 1 and feature_dim"),
        ("rotate(size=2, burn_in=3)+pcgrad", "reference norms"),
        ("", "empty spec"),
        ("pcgrad(1)", "without a name"),
        ("pcgrad(", "cannot read spec"),
        ("pcgrad-mgda", "not a part"),
        ("pcgrad(seed=__import__('os'))", "must be a whole number"),
    ],
)
def test_a_spec_that_makes_no_sense_says_why(spec, message):
    with pytest.raises(SpecError, match=message.replace("(", r"\(").replace("[", r"\[")):
        mtlkit.create_method(spec, ("first", "second"), feature_dim=8 if "size=9" in spec else None)


@pytest.mark.parametrize("tasks", [0, -1, "ab", [], ["a", "a"], True, [1, 2], None])
def test_tasks_that_are_none_are_refused(tasks):
    with pytest.raises(SpecError, match="task"):
        mtlkit.create_method("sum", tasks)


def test_a_wrong_number_of_losses_names_the_tasks():
    method = mtlkit.create_method("pcgrad", ("seg", "depth"))
    method(features())
    with pytest.raises(SpecError, match=r"1 losses for 2 tasks \(seg, depth\)"):
        method.total([torch.tensor(1.0)])


def test_an_unknown_task_in_the_losses_is_answered_with_the_nearest():
    method = mtlkit.create_method("pcgrad", ("seg", "depth"))
    method(features())
    with pytest.raises(UnknownNameError, match="unknown task 'dept'; did you mean 'depth'"):
        method.total({"seg": torch.tensor(1.0), "dept": torch.tensor(1.0)})


def test_a_loss_that_is_no_scalar_says_which_and_what_to_do():
    method = mtlkit.create_method("pcgrad", ("seg", "depth"))
    z, _ = method(features())
    with pytest.raises(SpecError, match=r"loss of task 'seg' has shape \(4, 3\).*\.mean\(\)"):
        method.total({"seg": z, "depth": None})
    with pytest.raises(SpecError, match="loss of task 'depth' is float"):
        method.total({"depth": 0.5})
    with pytest.raises(SpecError, match="not one tensor"):
        method.total(torch.ones(2))


@pytest.mark.parametrize("spec", ["pcgrad", "rotate(size=3)", "normalize+mgda", "mean"])
def test_total_before_the_features_are_forked_says_so(spec):
    method = mtlkit.create_method(spec, 2)
    with pytest.raises(UsageError, match=r"total\(losses\) before method\(features\)"):
        method.total([torch.ones((), requires_grad=True)] * 2)


@pytest.mark.parametrize("spec", ["sum", "normalize", "constant(weights=[1, 2])"])
def test_methods_that_only_weigh_losses_need_no_fork(spec):
    method = mtlkit.create_method(spec, 2)
    parameter = torch.ones((), requires_grad=True)
    method.total([parameter * 2, parameter * 3]).backward()
    assert parameter.grad > 0


def test_two_forks_in_one_step_are_refused_and_the_next_step_works():
    method = mtlkit.create_method("pcgrad", 2)
    first, second = method(features()), method(features())
    with pytest.raises(UsageError, match="forked twice"):
        method.total([first[0].sum(), second[1].sum()])
    a, b = method(features())
    method.total([a.sum(), b.sum()]).backward()


def test_a_forward_whose_result_was_dropped_does_not_count():
    method = mtlkit.create_method("pcgrad", 2)
    method(features())
    with torch.no_grad():
        method(features())
    a, b = method(features())
    method.total([a.sum(), b.sum()]).backward()


def test_a_backward_of_a_single_loss_is_refused():
    method = mtlkit.create_method("pcgrad", ("seg", "depth"))
    z, _ = method(features())
    with pytest.raises(UsageError, match=r"without task\(s\) depth.*method.total"):
        z.sum().backward()


def test_heads_that_bypass_the_fork_are_noticed():
    method = mtlkit.create_method("pcgrad", 2)
    z = features()
    method(z)
    with pytest.raises(UsageError, match="heads were not given what"):
        method.total([z.sum(), z.square().sum()]).backward()


def test_a_step_without_any_loss_and_fork_says_there_is_nothing_to_do():
    with pytest.raises(UsageError, match="nothing to minimise"):
        mtlkit.create_method("sum", 2).total([None, None])


def test_features_that_are_no_tensors_are_refused():
    method = mtlkit.create_method("pcgrad", 2)
    with pytest.raises(UsageError, match="not str"):
        method(["a"])
    with pytest.raises(UsageError, match="no tensor"):
        method([None])


@pytest.mark.parametrize(
    "grads", [torch.ones(3), torch.ones(3, 4), [[1.0]], torch.ones(2, 4, dtype=torch.long)]
)
def test_combine_says_which_shape_it_takes(grads):
    with pytest.raises(SpecError, match=r"combine takes one row per task, \(2, N\)|floating point"):
        mtlkit.create_method("mgda", 2).combine(grads)


def test_shared_must_hold_parameters():
    with pytest.raises(SpecError, match="shared must be a module or a list of parameters"):
        mtlkit.create_method("pcgrad(wrt=parameters)", 2, shared=3)
    with pytest.raises(SpecError, match="without any"):
        mtlkit.create_method("pcgrad(wrt=parameters)", 2, shared=torch.nn.ReLU())


def test_shared_parameters_that_are_not_below_the_features_are_noticed():
    method = mtlkit.create_method("pcgrad(wrt=parameters)", 2, shared=torch.nn.Linear(2, 2))
    with pytest.raises(UsageError, match="none of the parameters in `shared` lies below"):
        method(torch.nn.Linear(3, 3)(torch.randn(4, 3)))


def test_the_abstract_class_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        mtlkit.GradientAggregator(2)


def test_methods_without_rotations_say_so():
    with pytest.raises(UsageError, match="has no rotations"):
        mtlkit.create_method("pcgrad", 2).rotations  # noqa: B018


def test_a_finished_method_cannot_be_given_options():
    method = mtlkit.create_method("pcgrad", 2)
    assert mtlkit.create_method(method, 2) is method
    with pytest.raises(SpecError, match="cannot be"):
        mtlkit.create_method(method, 3)
