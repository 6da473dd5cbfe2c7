import pytest

import mtlkit
from mtlkit.cli import costs
from mtlkit.cli.catalog import all_facts, method_facts, method_page
from mtlkit.cli.costs import built_in_methods, kept_costs, measure_cost
from mtlkit.cli.papers import IDEAS, paper_link
from mtlkit.config.registry import methods, option_names
from mtlkit.errors import SpecError, UnknownNameError


@pytest.fixture
def own_method():
    @mtlkit.register_method("my_merge")
    class MyMerge(mtlkit.GradientAggregator):
        """Add :math:`G_k` with ``power``.

        Args:
            power: how much,
                on two lines.
        """

        paper, year = "A | B, C, 2030", 2030
        traceable = False
        waived_laws = {"distributed": "it is not"}

        def __init__(self, tasks, *, power: float = 2.0, **common):
            super().__init__(tasks, **common)
            self.power = power

        def weights(self, gram):
            return gram.diagonal() ** self.power

    methods.alias("my_alias", "uw+my_merge(power=3.0)")
    yield
    methods._factories.pop("my_merge")
    methods._aliases.pop("my_alias")


def test_every_registered_method_has_a_summary_and_known_facts():
    found = {facts.name: facts for facts in all_facts()}
    assert {"uw", "famo", "config", "graddrop", "pcgrad", "sum"} <= set(found)
    for facts in found.values():
        assert facts.summary, facts.name
        assert facts.roles, facts.name
        assert facts.distributed
        assert facts.cost
        for option in facts.options:
            assert option.description, (facts.name, option.name)


def test_facts_are_those_of_the_class():
    facts = method_facts("uw")
    assert facts.roles == ("weigh losses",)
    assert facts.year == 2018
    assert facts.paper.startswith("Kendall")
    assert facts.needs == ("losses", "own parameters")
    assert facts.factory == "mtlkit.weighting.uw.UW"
    assert method_facts("graddrop").needs == ("features", "whole gradients")
    assert method_facts("pcgrad").needs == ("features", "Gram matrix")
    assert method_facts("gradnorm").needs == ("features", "losses", "Gram matrix", "own parameters")
    assert method_facts("random").needs == method_facts("mean").needs == ("features",)
    assert method_facts("torchjd").distributed == "exact for aggregators of the Gram matrix"
    assert method_facts("sum").needs == ()
    assert method_facts("mgda").cost == "Gram matrix + solver"


def test_options_have_their_defaults_and_meanings():
    facts = method_facts("stch")
    options = {option.name: option for option in facts.options}
    assert set(options) == option_names(methods.get("stch"))
    assert options["mu"].default == 1.0
    assert options["transform"].default_text == "log"
    assert options["mu"].description.startswith("smoothness")


def test_a_method_registered_elsewhere_has_a_page(own_method):
    facts = method_facts("my_merge")
    assert facts.summary == "Add G_k with power."
    assert facts.cost == "Gram matrix + solver"
    assert facts.distributed == "it is not"
    assert facts.options[0].description == "how much, on two lines."
    page = method_page("my_merge")
    assert page.startswith("# my_merge\n")
    assert "A \\| B" in page
    assert "| `power` | `2.0` | how much, on two lines. |" in page
    assert ".. autoclass::" in page


def test_an_alias_says_what_it_stands_for(own_method):
    facts = method_facts("my_alias")
    assert facts.stands_for == "uw+my_merge(power=3.0)"
    assert facts.roles == ("weigh losses", "merge gradients")
    assert "own parameters" in facts.needs
    assert {o.name: o.default for o in facts.options}["power"] == 3.0
    page = method_page("my_alias")
    assert "[uw](uw.md), [my_merge](my_merge.md)" in page
    assert "autoclass" not in page


def test_methods_left_out_say_why():
    for name in ("auto_lambda", "forum", "moml"):
        with pytest.raises(SpecError, match=r"left out.*validation batch"):
            method_facts(name)


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(UnknownNameError, match="did you mean 'famo'"):
        method_facts("fano")


def test_every_paper_has_a_link():
    lacking = [facts.name for facts in all_facts() if facts.paper and not paper_link(facts.name)]
    assert not lacking
    assert "https://arxiv.org/abs/2110.14048" in method_page("cagrad")


def test_every_method_but_the_users_own_has_an_idea(own_method):
    grouped = [name for names in IDEAS.values() for name in names]
    assert len(grouped) == len(set(grouped))
    assert {facts.name for facts in all_facts()} - set(grouped) == {"my_merge", "my_alias"}


def test_the_cost_of_a_method_can_be_measured():
    assert measure_cost("si", tasks=2, repeats=2) >= 0
    assert measure_cost("gradnorm", tasks=2, repeats=2) >= 0


def test_the_table_has_a_figure_for_every_built_in_method_and_for_no_other(own_method):
    names = built_in_methods()
    assert {"uw", "rotograd", "sum", "mgda"} <= set(names)
    assert not {"my_merge", "my_alias"} & set(names)
    kept = kept_costs()
    assert set(kept.added) == set(names), "run `python -m benchmarks.speed.costs`"
    assert kept.added["sum"] == 0 < kept.added["mgda"] < kept.added["rotograd"]
    assert kept.plain > 0
    assert method_facts("mgda").figure == f"+{kept.added['mgda']:.1f} ms"
    assert method_facts("my_merge").figure == ""


def test_costs_are_written_and_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(
        costs, "built_in_methods", lambda: ["si", "sum", "vanilla", "scale", "scale_only"]
    )
    monkeypatch.setattr(costs, "COSTS", tmp_path / "costs.json")
    measured = costs.measure_costs(repeats=1, passes=1)
    costs.write_costs(measured, costs.COSTS)
    try:
        assert kept_costs() == measured
    finally:
        kept_costs.cache_clear()
    assert measured.added["scale"] == measured.added["scale_only"]
    assert measured.added["vanilla"] == 0
    assert measured.machine
