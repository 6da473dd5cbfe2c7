"""Options out of their ranges are refused by name, and so are words and tasks that do not exist."""

import math

import pytest

import mtlkit
from mtlkit.errors import SpecError

# of methods for the tasks a, b, c and d
REFUSED = {
    "adatask": "wrt=features, beta1=1.0, beta2=-0.1, eps=-1.0",
    "aligned_mtl": "scale_mode=max",
    "balancer": "norm=0.0, beta=1.0",
    "cagrad": "c=-1",
    "cosmos": "penalty=-1",
    "cr_mogm": "alpha=-0.1, alpha=1.1",
    "db_mtl": "beta=1.0, beta=-0.1, beta_sigma=-1",
    "dwa": "temperature=0, window=0",
    "excess_mtl": "eta=0.0, warmup=0",
    "fairgrad": "alpha=-1.0, alpha=0.005, alpha=1e400, alpha=nan",
    "famo": "lr=-1, gamma=-1",
    "go4align": "num_groups=0, eta=-1.0",
    "graddrop": "leak=2.0, leak=-0.1, leak=nan",
    "gradnorm": "alpha=-1",
    "gradvac": "beta=2, beta=-0.1",
    "igb": "base=0, window=0",
    "krum": "n_byzantine=2, n_selected=5, n_selected=0",
    "ldc": "penalty=-1.0",
    "lr_annealing": "alpha=2.0, reference=median",
    "match_primary": "relax=2.0, beta=1.0, strength=-1.0, max_ratio=0.0",
    "mgda": "normalize=max",
    "moco": "beta=0.0, beta_sigma=-1.0, gamma=0.0, gamma_sigma=-1.0, rho=-1.0",
    "modo": "gamma=0.0, rho=-1.0",
    "nash_mtl": "update_every=0, max_norm=-1.0",
    "normalize": "burn_in=-1",
    "pbi": "theta=-1",
    "pcd": "tau=2.0, beta=1.0",
    "pivrg": "alpha=0.0, bound=1.0, min_temperature=0.0",
    "recap": "window=0, temperature=0.0",
    "relobralo": "alpha=2.0, rho=-1.0, temperature=0.0",
    "rlw": "dist=cauchy",
    "scale": "burn_in=-1",
    "sdmgrad": "lam=-1.0, lr=0.0, momentum=1.0, n_iter=0",
    "softadapt": "points=1",
    "stch": "mu=0, warmup=-1, transform=exp",
    "trimmed_mean": "trim=-1",
    "uw": "classification=a",
    "uw_so": "temperature=0.0",
}


@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name in REFUSED for option in REFUSED[name].split(", ")]
)
def test_an_option_out_of_its_range_is_refused(name, option):
    key, _, _ = option.partition("=")
    with pytest.raises(SpecError, match=f"{key} of {name}|{name}.*{key}"):
        mtlkit.create_method(f"{name}({option})", [*"abcd"])


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("balancer", "preference"),
        ("constant", "weights"),
        ("cosmos", "preference"),
        ("famo", "min_losses"),
        ("graddrop", "leak"),
        ("pbi", "ideal"),
        ("pbi", "preference"),
        ("stch", "preference"),
        ("upgrad", "preference"),
    ],
)
@pytest.mark.parametrize("numbers", [[0.5], ["x", 0.5], [0.5, math.inf], {"c": 1.0}])
def test_numbers_that_are_not_one_per_task_or_by_name_are_refused(name, option, numbers):
    with pytest.raises(SpecError, match=rf"{option} of {name}|unknown task 'c'"):
        mtlkit.create_method(name, ["a", "b"], **{option: numbers})


@pytest.mark.parametrize("name", ["balancer", "cosmos", "pbi", "stch", "upgrad"])
@pytest.mark.parametrize("numbers", [[0, 0], [1, -1]])
def test_a_preference_is_not_negative_nor_all_zero(name, numbers):
    with pytest.raises(SpecError, match=f"preference of {name}"):
        mtlkit.create_method(name, 2, preference=numbers)


@pytest.mark.parametrize("spec", ["lr_annealing(primary=depht)", "match_primary(primary=depht)", "pcd(primary=depht)", "uw(classification=[depht])"])  # fmt: skip
def test_an_unknown_task_is_refused_with_the_known_ones(spec):
    with pytest.raises(SpecError, match=r"unknown task 'depht'.*depth"):
        mtlkit.create_method(spec, ["seg", "depth"])
