"""The facts of a method are those of its class."""

from typing import Annotated

import numpy as np
import pytest

import mtlkit
from mtlkit.cli.catalog import OMITTED, all_facts, method_facts
from mtlkit.config.annotations import Ge
from mtlkit.config.registry import methods
from mtlkit.errors import SpecError, UnknownNameError
from mtlkit.method.host import on_host

ALIASES = methods.aliases()
BUILT_IN = [name for name in methods.names() if name not in ALIASES]


@pytest.fixture
def own_method():
    with methods.temporary():

        @mtlkit.register_method("my_merge")
        class MyMerge(mtlkit.GradientAggregator):
            """Add :math:`G_k` with ``power``.

            Args:
                power: how much,
                    on two lines.
            """

            paper = "A | B, C, 2030"
            waived_laws = {"distributed": "it is not"}

            def __init__(self, tasks, *, power: Annotated[float, Ge(0)] = 2.0, **common):
                super().__init__(tasks, **common)
                self.power = power

            def weigh(self, gram, state):
                return on_host(np.diag, gram) ** self.power, state

        methods.alias("my_alias", "uw+my_merge(power=3.0)")
        yield


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_method_is_described_in_its_file(name):
    facts = method_facts(name)
    assert facts.summary
    assert facts.idea
    assert bool(facts.paper) == bool(facts.url) == bool(facts.year)
    assert [option.name for option in facts.options if not option.description] == []


@pytest.mark.parametrize("name", methods.names())
def test_the_needs_are_those_of_the_method_that_is_made(name):
    method = mtlkit.create_method(name, 2, feature_dim=4)
    assert ("own parameters" in method_facts(name).needs) == bool(list(method.parameters()))


def test_needs_and_work_are_read_from_the_hooks():
    assert method_facts("uw").needs == ("losses", "own parameters")
    assert method_facts("graddrop").needs == ("features", "whole gradients")
    assert method_facts("pcgrad").needs == ("features", "Gram matrix")
    assert method_facts("gradnorm").needs == ("features", "losses", "Gram matrix", "own parameters")
    assert method_facts("random").needs == method_facts("mean").needs == ("features",)
    assert method_facts("sum").needs == ()
    assert method_facts("mgda").cost == method_facts("cr_mogm").cost == "Gram matrix + solver"


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_class_is_exported_and_is_the_same_by_name_and_by_string(name):
    class_name = methods.get(name).__name__
    factory = getattr(mtlkit.weighting, class_name)
    assert factory is methods.get(name)
    assert class_name in mtlkit.weighting.__all__, f"export {class_name} in mtlkit/weighting/__init__.py"
    size = {"feature_dim": 4} if name == "rotate" else {}
    method = mtlkit.Method([factory(2, **size)])
    assert str(method) == str(mtlkit.create_method(name, 2, feature_dim=4))


def test_an_option_says_its_range():
    (c,) = [option for option in method_facts("cagrad").options if option.name == "c"]
    assert (c.default_text, c.accepted) == ("0.4", "a number, 0 or more")


def test_a_method_registered_elsewhere_is_read_too(own_method):
    facts = method_facts("my_merge")
    assert facts.summary == "Add G_k with power."
    assert facts.cost == "Gram matrix + solver"
    assert facts.distributed == "it is not"
    assert (facts.paper, facts.year) == ("A | B, C, 2030", 2030)
    assert facts.options[0].description == "how much, on two lines."
    assert facts.options[0].accepted == "a number, 0 or more"
    assert "my_merge" in {each.name for each in all_facts()}


def test_a_function_that_makes_a_method_is_listed(own_method):
    @mtlkit.register_method("made_for_test")
    def make(tasks):
        """Made by a function."""
        return mtlkit.weighting.Sum(tasks)

    assert method_facts("made_for_test").docstring == "Made by a function."


def test_an_alias_says_what_it_stands_for(own_method):
    facts = method_facts("my_alias")
    assert facts.stands_for == "uw+my_merge(power=3.0)"
    assert facts.roles == ("weigh losses", "merge gradients")
    assert "own parameters" in facts.needs
    assert {o.name: o.default for o in facts.options}["power"] == 3.0


def test_methods_left_out_say_why_and_unknown_names_get_the_nearest():
    for name in OMITTED:
        with pytest.raises(SpecError, match=r"left out.*validation batch"):
            method_facts(name)
    with pytest.raises(UnknownNameError, match="did you mean 'famo'"):
        method_facts("fano")
    assert method_facts("Nash-MTL").name == "nash_mtl"
