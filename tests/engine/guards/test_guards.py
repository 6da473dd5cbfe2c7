"""Bad input gets an error that says what was given, what is accepted and what to do."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import mtlkit
from mtlkit.config.registry import methods
from mtlkit.errors import SpecError, UnknownNameError, UsageError
from tests.networks import SmallNet


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
        ("pcgrad(seed=1.5)", "must be an integer"),
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
        ("pcgrad*mgda", "not a part"),
        ("pcgrad-mgda", "unknown method"),
        ("pcgrad(seed=__import__('os'))", "must be an integer"),
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


def test_a_loss_with_one_element_is_a_scalar():
    method = mtlkit.create_method("mgda", 2)
    z = torch.zeros(2, requires_grad=True)
    first, second = method(z)
    method.total([2 * first[:1], second[1:].reshape(1, 1)]).backward()
    torch.testing.assert_close(z.grad, torch.tensor([0.4, 0.8]))


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
    with pytest.raises(UsageError, match="nothing to minimize"):
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
    with pytest.raises(SpecError, match="shared must be a module, a list of modules or parameters"):
        mtlkit.create_method("pcgrad(wrt=parameters)", 2, shared=3)
    with pytest.raises(SpecError, match="without any"):
        mtlkit.create_method("pcgrad(wrt=parameters)", 2, shared=torch.nn.ReLU())


def test_shared_may_be_a_list_of_modules_and_parameters():
    lower, upper = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    shared = [lower, upper, upper.bias]
    method = mtlkit.create_method("pcgrad(wrt=parameters)", 2, shared=shared)
    assert [*map(id, method.shared)] == [*map(id, [*lower.parameters(), *upper.parameters()])]
    with pytest.raises(SpecError, match="list of list"):
        mtlkit.create_method("pcgrad(wrt=parameters)", 2, shared=[[lower]])


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


def small_net(spec, **options):
    torch.manual_seed(0)
    return SmallNet(spec, **options).double()


def inputs(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(5, 4, dtype=torch.float64, generator=generator)


def gradients(net, total):
    net.zero_grad()
    total().backward()
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def assert_equal_gradients(found, wanted):
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("wrt", ["features", "parameters"])
@pytest.mark.parametrize("spec", ["mgda(normalize=loss)", "gradnorm"])
def test_micro_batches_of_one_graph_have_their_own_losses_and_scales(spec, wrt):
    scales = [1.0, 0.25, 7.0]
    batches = []
    for k in range(3):  # the loss of task k is small in batch k, so gradnorm moves its weight otherwise
        labels = torch.ones(5, 3)
        labels[1:, k] = 0
        batches.append((inputs(k + 1), labels))

    def net_after_a_step():
        net = small_net(spec, wrt=wrt)
        net(inputs(0)).backward()  # gradnorm compares the losses with those of the first step
        return net

    net = net_after_a_step()
    pairs = list(zip(batches, scales, strict=True))
    together = gradients(net, lambda: sum(scale * net(*batch) for batch, scale in pairs))
    net = net_after_a_step()
    net.zero_grad()
    for batch, scale in pairs:
        (scale * net(*batch)).backward()
    wanted = {name: p.grad for name, p in net.named_parameters()}
    assert_equal_gradients(together, wanted)


def views_and_losses(method, read):
    """Losses of three heads; ``read(k, features, views)`` is what head k is given."""
    torch.manual_seed(0)
    z = features()
    views = method(z)
    heads = [torch.nn.Linear(3, 1) for _ in method.tasks]
    return [head(read(k, z, views)).square().mean() for k, head in enumerate(heads)]


@pytest.mark.parametrize(
    ("read", "named"),
    [
        (lambda k, z, views: views[0], "depth, normal"),
        (lambda k, z, views: z if k == 1 else views[k], "depth"),
    ],
)
@pytest.mark.parametrize("spec", ["pcgrad", "uw+mgda"])
def test_a_head_that_bypasses_its_view_is_named(spec, read, named):
    method = mtlkit.create_method(spec, ("seg", "depth", "normal"))
    total = method.total(views_and_losses(method, read))
    with pytest.warns(UserWarning, match=rf"gradient of task\(s\) {named} did not pass the junction"):
        total.backward()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("wrt", ["features", "parameters"])
def test_heads_that_read_their_views_cause_no_warning(wrt):
    net = small_net("pcgrad", wrt=wrt)
    labels = torch.ones(5, 3)
    labels[:, 1] = 0
    net(inputs(), labels).backward()  # a task without labels
    first, second, third = net.losses(inputs())
    net.method.total([first, second.detach(), third]).backward()  # a loss that needs no gradient
    net.backbone.requires_grad_(False)
    net(inputs()).backward()


@pytest.mark.filterwarnings("error")
def test_separate_inputs_and_single_tasks_cause_no_warning():
    net = mtlkit.create_architecture(
        "hard_sharing(backbone=mlp(6, inputs=4), multi_input=True)", ("seg", "depth"), method="pcgrad"
    )
    for given in ({"seg": torch.randn(3, 4), "depth": torch.randn(2, 4)}, {"depth": torch.randn(2, 4)}):
        predictions = net(given)
        losses = {task: prediction.square().mean() for task, prediction in predictions.items()}
        net.method.total(losses).backward()
    net.only("seg")(torch.randn(3, 4)).square().mean().backward()


@pytest.mark.parametrize(
    "spec", ["uw", "uw+pcgrad", "normalize", "dwa+mgda", "imtl_l", "famo", "db_mtl"]
)
def test_a_backward_that_leaves_out_the_weights_of_the_losses_names_the_tasks(spec):
    method = mtlkit.create_method(spec, ("seg", "depth"))
    losses = views_and_losses(method, lambda k, z, views: views[k])
    with pytest.raises(
        UsageError, match=r"weighs the losses of seg, depth.*backward\(\) on method.total"
    ):
        sum(losses).backward()


@pytest.mark.parametrize("spec", ["sum", "pcgrad", "mgda", "rotate+imtl_g", "pcgrad(wrt=parameters)"])
def test_without_weights_of_the_losses_their_plain_sum_is_the_total(spec):
    first, second = small_net(spec), small_net(spec)
    found = gradients(first, lambda: sum(first.losses(inputs())))
    assert_equal_gradients(found, gradients(second, lambda: second(inputs())))


@pytest.mark.parametrize("spec", ["pcgrad", "pcgrad(wrt=parameters)", "uw+rotate+mgda"])
def test_a_step_that_failed_before_total_does_not_disturb_the_next(spec):
    net = small_net(spec)
    kept = None
    try:
        losses = net.losses(inputs())
        raise RuntimeError(f"out of memory after {len(losses)} losses")
    except RuntimeError as error:
        kept = error  # its traceback keeps the losses, and so their graph, alive
    again = gradients(net, lambda: net(inputs()))
    assert kept is not None
    fresh = small_net(spec)
    assert_equal_gradients(again, gradients(fresh, lambda: fresh(inputs())))


def checkpointed(net, labels, inside):
    """The total of a net whose whole forward is in a reentrant checkpoint."""
    x = inputs().requires_grad_()
    if inside:
        return checkpoint(net, x, labels, use_reentrant=True)
    return net.method.total(checkpoint(lambda x: tuple(net.losses(x, labels)), x, use_reentrant=True))


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(
    "spec", ["pcgrad", "rotate+sum", "gradnorm", "uw+mgda", "pcgrad(wrt=parameters)"]
)
def test_a_reentrant_checkpoint_around_the_fork_is_refused(spec, inside, missing):
    labels = torch.tensor([[1, 1, 0 if missing else 1]] * 5)
    net = small_net(spec)
    with pytest.raises(UsageError, match="use_reentrant=False"):
        checkpointed(net, labels, inside).backward()


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("spec", ["sum", "uw", "constant(weights=[1, 2, 3])"])
def test_a_reentrant_checkpoint_is_in_order_where_nothing_is_merged(spec, inside, missing):
    labels = torch.tensor([[1, 1, 0 if missing else 1]] * 5)
    net = small_net(spec)
    found = gradients(net, lambda: checkpointed(net, labels, inside))
    assert_equal_gradients(found, gradients(net, lambda: net(inputs(), labels)))


class ReentrantBackbone(torch.nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone

    def forward(self, x):
        return checkpoint(self.backbone, x.requires_grad_(), use_reentrant=True)


@pytest.mark.parametrize("spec", ["mgda", "rotate+imtl_g"])
def test_a_reentrant_checkpoint_below_the_fork_changes_nothing(spec):
    net = small_net(spec)
    wanted = gradients(net, lambda: net(inputs()))
    net.backbone = ReentrantBackbone(net.backbone)
    found = gradients(net, lambda: net(inputs()))
    assert_equal_gradients(
        {k.replace("backbone.backbone", "backbone"): v for k, v in found.items()}, wanted
    )


def test_rows_of_parameters_in_a_reentrant_checkpoint_are_refused():
    net = small_net("pcgrad(wrt=parameters)")
    net.backbone = ReentrantBackbone(net.backbone)
    with pytest.raises(UsageError, match="use_reentrant=False"):
        net(inputs())
    loss = net.backbone(inputs()).square().mean()
    with pytest.raises(UsageError, match="use_reentrant=False"):
        net.method.total([loss, 2 * loss, loss.sqrt()])


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e400", "[1, inf]", "{a: nan}"])
def test_an_option_that_is_not_finite_is_refused_unless_its_default_is_not(value):
    class Lenient(mtlkit.GradientAggregator):
        def __init__(self, tasks, *, strength=1.0, limit=float("inf"), **common):
            super().__init__(tasks, **common)
            self.strength, self.limit = strength, limit

        def weigh(self, gram, state):
            return torch.ones_like(gram[0]), state

    with methods.temporary():
        mtlkit.register_method("lenient_test_method")(Lenient)
        with pytest.raises(SpecError, match="strength of lenient_test_method must be finite"):
            mtlkit.create_method(f"lenient_test_method(strength={value})", 2)
        mtlkit.create_method(f"lenient_test_method(limit={value})", 2)


@pytest.mark.parametrize("value", ["inf", "nan"])
@pytest.mark.parametrize("option", ["cagrad(c={})", "gradnorm(alpha={})", "constant(weights=[1, {}])"])
def test_the_methods_own_options_must_be_finite(option, value):
    name = option.partition("(")[2].partition("=")[0]
    with pytest.raises(SpecError, match=name):
        mtlkit.create_method(option.format(value), 2)


@pytest.mark.parametrize("spec", ["moco(wrt=parameters)", "db_mtl(wrt=parameters)"])
def test_averages_are_not_mixed_where_the_merged_parameters_change(spec):
    first, second = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    method = mtlkit.create_method(spec, 3)

    def step(*losses):
        method.total(losses).backward()

    # tasks 0 and 1 share the first parameter, tasks 1 and 2 the second one
    step(first.square().sum(), (first * second).sum(), None)
    step((2 * first).square().sum(), (first * second).sum(), None)
    with pytest.raises(UsageError, match=r"of other parameters.*same in every step"):
        step(None, (first * second).sum(), second.square().sum())


def test_parameters_that_zero_3_has_partitioned_are_refused():
    net = torch.nn.Linear(2, 2)
    for parameter in net.parameters():
        parameter.ds_id = 0  # DeepSpeed's mark
    method = mtlkit.create_method("upgrad(wrt=parameters)", 2)
    with pytest.raises(UsageError, match="DeepSpeed"):
        mtlkit.backward([*net(torch.ones(2)).unbind()], method, net)


def test_experts_that_differ_between_micro_batches_are_accumulated_without_a_fork():
    experts, heads = [nn.Linear(4, 4), nn.Linear(4, 4)], [nn.Linear(4, 1) for _ in range(2)]

    def accumulate(fork):
        method = mtlkit.create_method("mgda(wrt=parameters)", 2)
        for expert in experts:
            z = expert(torch.randn(5, 4))
            views = method(z) if fork else [z, z]
            losses = [head(view).square().mean() for head, view in zip(heads, views, strict=True)]
            method.total(losses, merge=expert is experts[-1]).backward()

    with pytest.raises(UsageError, match=r"leave method\(features\) out"):
        accumulate(fork=True)
    accumulate(fork=False)
    assert all(expert.weight.grad.any() for expert in experts)
