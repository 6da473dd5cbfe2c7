"""What is searched: the methods' own lines, the grammar of a configuration, presets."""

import math
from pathlib import Path

import pytest

import mtlkit
from mtlkit.config.registry import methods, option_defaults
from mtlkit.config.search import (
    LR_RATIO,
    Choice,
    FeatureShare,
    LogUniform,
    Simplex,
    Uniform,
    parse_search,
)
from mtlkit.config.yaml_files import read_yaml
from mtlkit.errors import ConfigError, SpecError
from mtlkit.experiments.compare_config import CompareConfig
from mtlkit.experiments.tuning import TuneConfig
from mtlkit.experiments.tuning.ledger import grid_of
from mtlkit.experiments.tuning.spaces import make_space

TASKS = ("left", "right", "sum")
TRAIN = {"lr": 1e-3, "method_lr": None, "weight_decay": 0.0}
SEARCHED = [name for name in mtlkit.list_methods() if name not in methods.aliases()]


def space_of(method, given=None, features=40, train=TRAIN):
    return make_space(method, given or {}, train, TASKS, lambda: features)


@pytest.mark.parametrize("name", SEARCHED)
def test_a_method_searches_options_that_it_has_around_their_defaults(name):
    factory = methods.get(name)
    defaults = option_defaults(factory)
    for option, search in getattr(factory, "search_space", {}).items():
        if option == LR_RATIO:
            continue
        assert option in defaults
        if isinstance(search, Uniform | LogUniform):
            assert search.low <= defaults[option] <= search.high
        elif isinstance(search, Choice):
            assert defaults[option] in search.values


@pytest.mark.parametrize("name", SEARCHED)
def test_every_corner_of_a_space_makes_a_method(name):
    if name == "torchjd":
        pytest.importorskip("torchjd", reason="TorchJD is in mtlkit[dev]")
    space = space_of(name)
    for at in (0, -1):
        point = {axis: search.grid(3)[at] for axis, search in space.axes.items()}
        spec = space.method(point)
        made = mtlkit.create_method(spec, TASKS, feature_dim=40)
        assert str(mtlkit.create_method(str(made), TASKS, feature_dim=40)) == str(made)


def test_options_that_are_given_are_not_searched():
    assert set(space_of("cagrad").axes) == {"cagrad.c"}
    assert set(space_of("cagrad(c=0.3)").axes) == set()
    assert space_of("cagrad(c=0.3)").method({}) == "cagrad(c=0.3)"


def test_an_alias_is_searched_by_its_parts():
    space = space_of("normalize+rotograd")
    assert set(space.axes) == {"rotate.size", LR_RATIO}
    assert space.axes["rotate.size"].values == (10, 20, 30, None)
    assert space.method({"rotate.size": 10}) == "normalize+rotate(size=10)+scale"
    assert space.method({"rotate.size": None}) == "normalize+rotate+scale"


def test_the_rate_of_the_methods_parameters_follows_that_of_the_network():
    space = space_of("rotograd", {"lr": LogUniform(1e-4, 1e-2)})
    assert space.settings({"lr": 2e-3, LR_RATIO: 0.25}, TRAIN) == {"lr": 2e-3, "method_lr": 5e-4}
    fixed = {**TRAIN, "method_lr": 1e-4}
    assert space_of("sum").settings({"lr": 2e-3}, fixed) == {"lr": 2e-3, "method_lr": 2e-4}
    assert space_of("sum").settings({"lr": 2e-3}, TRAIN) == {"lr": 2e-3}


def test_loss_weights_are_searched_on_the_simplex():
    space = space_of("constant")
    assert list(space.axes) == [f"constant.weights.{task}" for task in TASKS]
    equal = dict.fromkeys(space.axes, 1.0)
    method = mtlkit.create_method(space.method(equal), TASKS)
    assert method.parts[0].weights == {"left": 1.0, "right": 1.0, "sum": 1.0}
    some = dict(zip(space.axes, (20.0, 1.0, 0.05), strict=True))
    weights = mtlkit.create_method(space.method(some), TASKS).parts[0].weights
    assert sum(weights.values()) == pytest.approx(3, abs=1e-2)
    assert weights["left"] > weights["right"] > weights["sum"] > 0


def test_weightings_reach_losses_whose_scales_differ_by_ten_thousand():
    import numpy as np

    axis = Simplex().axis
    random = np.random.default_rng(0)
    numbers = np.exp(random.uniform(np.log(axis.low), np.log(axis.high), (2000, 2)))
    ratios = np.array([a / b for a, b in map(Simplex().weights, numbers)])
    assert np.mean(ratios > 100) == pytest.approx(0.125, abs=0.03)
    assert np.mean(ratios < 0.01) == pytest.approx(0.125, abs=0.03)
    assert ratios.max() > 3000


def test_lengths_and_networks_can_be_searched():
    given = {
        "batch_size": Choice(32, 64),
        "steps": LogUniform(10, 1000),
        "architecture": Choice("a", "b"),
    }
    point = {"batch_size": 32, "steps": 99.6, "architecture": "b"}
    assert space_of("sum", given).settings(point, TRAIN) == {**point, "steps": 100}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("log(1e-4, 1e-2)", LogUniform(1e-4, 1e-2)),
        ("uniform(0, 1)", Uniform(0, 1)),
        ("share(0.5, 1)", FeatureShare(0.5, 1)),
        ([0, "1e-4", "adam"], Choice(0, 1e-4, "adam")),
    ],
)
def test_a_space_is_read(given, expected):
    assert parse_search(given, "here") == expected
    assert parse_search(expected, "here") is expected


@pytest.mark.parametrize(
    "given", ["log(0, 1)", "log(1e-2, 1e-4)", "normal(0, 1)", 3, "log(1)", [], [[1]], "share(2)", "log("]
)
def test_a_space_that_cannot_be_read_is_an_error(given):
    with pytest.raises(ConfigError, match=r"here: cannot search in .*give log\(1e-4, 1e-2\)"):
        parse_search(given, "here")


def test_shares_of_the_features_stay_below_the_most():
    assert FeatureShare(0.25, 0.5, 1).sizes(2048).values == (512, 1024)
    assert FeatureShare(0.25, 0.5, 1).sizes(8000).values == (1500,)
    assert FeatureShare(0.25, 0.5, 1).sizes(100).values == (25, 50, None)


def make(**settings):
    return TuneConfig.make({"data": "multidigits", "methods": ["sum", "rotograd"], **settings})


def test_the_papers_grids():
    config = make(preset="rotograd_paper")
    assert config.sampler == "grid"
    rotograd = make_space("rotograd", config.searched, TRAIN, TASKS, lambda: 40)
    assert len(grid_of(rotograd)) == 4 * 5
    points = grid_of(rotograd)
    assert {point["rotate.size"] for point in points} == {10, 20, 30, None}
    assert {point[LR_RATIO] for point in points} == {0.05, 0.1, 0.5, 1.0, 2.0}
    gradnorm = make_space("gradnorm", config.searched, TRAIN, TASKS, lambda: 40)
    assert {point["gradnorm.alpha"] for point in grid_of(gradnorm)} == {0, 0.5, 1, 2}
    assert grid_of(make_space("sum", config.searched, TRAIN, TASKS, lambda: 40)) == [{}]
    assert config.trials_for(20) == 20
    assert len(grid_of(make_space("constant", config.searched, TRAIN, TASKS, lambda: 40))) == 1


def test_a_preset_can_be_changed():
    config = make(preset="rotograd_paper", sampler="random", space={"lr": "log(1e-4, 1e-2)"})
    assert config.sampler == "random"
    assert {"lr", "gradnorm.alpha", "rotate.size", LR_RATIO} == set(config.searched)


def test_a_grid_of_a_range_has_both_ends():
    assert Uniform(0, 1).grid(5) == [0, 0.25, 0.5, 0.75, 1]
    assert LogUniform(1e-4, 1).grid(5) == [1e-4, 1e-3, 1e-2, 1e-1, 1]
    assert all(math.isfinite(value) for value in LogUniform(1e-3, 7).grid(4))


def test_the_learning_rate_is_searched_where_nothing_is_said():
    assert make(lr=2e-3).searched == {"lr": LogUniform(2e-4, 2e-2)}
    assert [entry.label for entry in make().entries] == ["sum", "tuned sum", "rotograd"]
    assert [entry.label for entry in make(tuned_sum=False).entries] == ["sum", "rotograd"]
    assert list(space_of("cagrad", make().searched).axes) == ["lr", "cagrad.c"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trial": 3}, "unknown key 'trial'; did you mean 'trials'"),
        ({"trials": 0}, "'trials' must be 1 or more"),
        ({"sampler": "tpee"}, "'sampler' must be one of"),
        ({"preset": "rotograd"}, "unknown preset 'rotograd'; did you mean 'rotograd_paper'"),
        ({"space": {"learning_rate": [1]}}, "unknown key 'learning_rate'"),
        (
            {"space": {"cagrad.c": [1]}},
            "'cagrad.c' is an option of cagrad, which is not among the methods",
        ),
        ({"space": {"lr": "normal(0, 1)"}}, "cannot search in"),
        ({"space": {"cagad.c": [1]}}, "did you mean 'cagrad'"),
    ],
)
def test_wrong_settings_are_named(changes, message):
    with pytest.raises(SpecError, match=message):
        make(**changes)


def test_a_wrong_option_in_the_space_is_named():
    with pytest.raises(SpecError, match="unknown option of cagrad in 'space' 'd'"):
        space_of("cagrad", {"cagrad.d": Uniform(0, 1)})


def test_the_benchmark_of_the_field_has_ten_methods_and_the_settings_of_its_comparison_exist():
    folder = Path(__file__).parents[3] / "benchmarks" / "field"
    config = TuneConfig.make(read_yaml(folder / "multidigits_tuned.yaml"))
    assert len(config.entries) == 10
    assert config.trials == 20
    CompareConfig.check_keys(read_yaml(folder / "multidigits_winners.yaml"), "winners")


def test_only_the_weights_of_the_sum_are_searched_on_raw_units():
    folder = Path(__file__).parents[3] / "benchmarks" / "field"
    config = TuneConfig.make(read_yaml(folder / "units_tuned.yaml"))
    assert [entry.label for entry in config.entries] == ["tuned sum"]
    assert config.searched == {}
