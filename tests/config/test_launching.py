"""What a launcher such as torchrun started is read off the environment, and said once."""

import warnings

import pytest
import torch

import mtlkit
from mtlkit.cli import main
from mtlkit.config.launching import LaunchError, launched_processes, refuse_launcher
from tests.networks import SmallNet

VARIABLES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def train(steps: int) -> list[str]:
    net = SmallNet("pcgrad")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            net(torch.randn(4, 4)).backward()
    return [str(warning.message) for warning in caught]


def test_processes_that_nothing_joins_are_told_once_by_the_first(monkeypatch):
    assert train(30) == []
    monkeypatch.setenv("WORLD_SIZE", "2")
    (warning,) = train(30)
    assert "2 processes were started" in warning
    assert "each trains alone" in warning
    monkeypatch.setenv("RANK", "1")
    assert train(30) == []


def test_nothing_is_said_before_training_has_begun(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert train(3) == []


@pytest.mark.parametrize(
    "variables",
    [{"WORLD_SIZE": "2"}, {"WORLD_SIZE": "1", "LOCAL_RANK": "0"}, {"OMPI_COMM_WORLD_SIZE": "4"}],
)
def test_a_launcher_is_refused_with_what_to_do(variables, monkeypatch):
    refuse_launcher("mtlkit compare")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match="mtlkit compare starts its own processes"):
        refuse_launcher("mtlkit compare")


def test_a_variable_that_is_no_number_is_no_launcher(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "many")
    assert launched_processes() == 1


@pytest.mark.parametrize(("rank", "code"), [("0", 1), ("1", 0)])
def test_compare_under_a_launcher_ends_at_once_and_one_process_says_why(
    rank, code, monkeypatch, capsys, tmp_path
):
    for name, value in {"WORLD_SIZE": "2", "RANK": rank, "LOCAL_RANK": rank}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--demo", "-o", str(tmp_path / "out")])
    assert ended.value.code == code
    said = capsys.readouterr().err
    assert ("run it directly, with --jobs" in said) == (rank == "0")
    assert not (tmp_path / "out").exists()


def test_losses_of_one_process_are_weighed_by_nothing():
    losses = {"a": torch.tensor(2.0), "b": None}
    assert mtlkit.weigh_by_labels(losses, {"a": 3, "b": 0}) == losses
    with pytest.raises(mtlkit.MtlkitError, match="task in labels"):
        mtlkit.weigh_by_labels(losses, {"a": 3})
