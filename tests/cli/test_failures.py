"""No raw traceback: a sentence that says what happened and where, and a file for the rest."""

import errno
import re
import sys
from pathlib import Path

import pytest
import torch

from mtlkit import cli
from mtlkit.cli.failures import explain


@pytest.fixture
def failing(monkeypatch, capsys):
    """Run a command line whose command raises."""

    def run(raising):
        def command(**_):
            raising()

        monkeypatch.setattr(cli, "app", lambda **_: command())
        with pytest.raises(SystemExit) as stop:
            cli.main(["anything"])
        return stop.value.code, capsys.readouterr().err

    return run


def test_a_full_disk_is_told_with_the_file_and_what_to_do(failing):
    def write():
        raise OSError(errno.ENOSPC, "No space left on device", "runs/x/last.pt")

    code, said = failing(write)
    assert code == 1
    assert "the disk is full while writing runs/x/last.pt; free some space" in said
    assert "Traceback" not in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_checkpoint_on_a_full_disk_is_told_too(failing):
    code, said = failing(lambda: torch.save({"weights": torch.ones(100_000)}, "/dev/full"))
    assert code == 1
    assert "the disk is full" in said
    assert "free some space" in said


def test_the_traceback_goes_to_a_file(failing):
    code, said = failing(lambda: {}["missing"])
    assert code == 1
    path = Path(re.search(r"traceback: (\S+)", said).group(1))
    assert "Traceback" in path.read_text()
    assert "KeyError: 'missing'" in path.read_text()
    path.unlink()


def test_an_error_in_the_users_own_file_names_its_line(tmp_path, monkeypatch):
    (tmp_path / "my_broken_code.py").write_text("\n\ndef make():\n    return 1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    import my_broken_code

    with pytest.raises(ZeroDivisionError) as caught:
        my_broken_code.make()
    said = explain(caught.value)
    assert said == f"ZeroDivisionError: division by zero, in {tmp_path / 'my_broken_code.py'}, line 4"
    del sys.modules["my_broken_code"]


@pytest.mark.parametrize(
    "fail",
    [
        lambda: torch.nn.Linear(3, 2)(torch.ones(4, 5)),
        lambda: torch.nn.Conv2d(3, 2, 1)(torch.ones(1, 4, 5, 5)),
        lambda: torch.ones(3) + torch.ones(4),
        lambda: torch.nn.functional.cross_entropy(torch.ones(4, 3), torch.ones(5, dtype=torch.long)),
        lambda: torch.cat([torch.ones(2, 3), torch.ones(3, 4)]),
        lambda: torch.ones(6).reshape(4, 2),
    ],
)
def test_shapes_that_do_not_fit_are_told_as_that(fail, monkeypatch):
    monkeypatch.setattr("mtlkit.cli.failures.users_line", lambda error: "")
    with pytest.raises((RuntimeError, ValueError)) as caught:
        fail()
    assert explain(caught.value).startswith("shapes do not match (")


def test_memory_and_other_errors_say_what_to_do(monkeypatch):
    monkeypatch.setattr("mtlkit.cli.failures.users_line", lambda error: "")
    assert "smaller batch_size" in explain(torch.OutOfMemoryError("CUDA out of memory."))
    assert "please report it" in explain(KeyError("x"))
    denied = PermissionError(errno.EACCES, "Permission denied", "runs/x")
    assert explain(denied) == "PermissionError: [Errno 13] Permission denied: 'runs/x'"


def test_usage_errors_keep_their_own_words(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", "--no-such-option"])
    assert stop.value.code == 2
    assert "traceback:" not in capsys.readouterr().err
