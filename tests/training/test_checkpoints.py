import os
import pickle
import random

import numpy as np
import pytest
import torch

from mtlkit.training.checkpoints import (
    CheckpointError,
    Checkpoints,
    load_checkpoint,
    read_rng,
    save_checkpoint,
    seed_rng,
    write_rng,
)


class Trap:
    """Pickled code that would leave a file behind if it were run."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def state(value: float = 1.0) -> dict:
    return {"model": {"weight": torch.full((100,), value)}, "note": "x"}


def test_what_is_saved_is_read_back(tmp_path):
    save_checkpoint(tmp_path / "a.pt", state(3.0))
    assert torch.equal(load_checkpoint(tmp_path / "a.pt")["model"]["weight"], torch.full((100,), 3.0))


def test_a_failed_write_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch):
    path = tmp_path / "a.pt"
    save_checkpoint(path, state(1.0))

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(path, state(2.0))
    monkeypatch.undo()
    assert load_checkpoint(path)["model"]["weight"][0] == 1.0
    assert [p.name for p in tmp_path.iterdir()] == ["a.pt"]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_file_gets_a_clear_error(share, tmp_path):
    path = tmp_path / "a.pt"
    save_checkpoint(path, state())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(CheckpointError, match="truncated"):
        load_checkpoint(path)


def test_a_changed_byte_is_found(tmp_path):
    path = tmp_path / "a.pt"
    save_checkpoint(path, state(1.0))
    content = bytearray(path.read_bytes())
    where = content.find(torch.full((100,), 1.0).numpy().tobytes())
    assert where > 0
    content[where + 10] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(path)


def test_a_foreign_file_is_named_as_such(tmp_path):
    torch.save({"weight": torch.ones(2)}, tmp_path / "torch.pt")
    with pytest.raises(CheckpointError, match="not written by mtlkit"):
        load_checkpoint(tmp_path / "torch.pt")
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        load_checkpoint(tmp_path / "text.pt")
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        load_checkpoint(tmp_path / "absent.pt")
    with pytest.raises(CheckpointError, match=r"a folder.*resume='auto'"):
        load_checkpoint(tmp_path)


def test_pickled_code_is_refused_and_not_run(tmp_path):
    torch.save(
        {"format": "mtlkit checkpoint", "version": 1, "trap": Trap(tmp_path / "ran")}, tmp_path / "a.pt"
    )
    with pytest.raises(CheckpointError, match="pickled code is refused"):
        load_checkpoint(tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(pickle.dumps(Trap(tmp_path / "ran")))
    with pytest.raises(CheckpointError):
        load_checkpoint(tmp_path / "b.pt")
    assert not (tmp_path / "ran").exists()


def test_a_state_that_could_not_be_read_back_is_not_saved(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(CheckpointError, match="pickled code is refused"):
        checkpoints.save(1, {"scheduler": {"function": os.getcwd}})
    assert list(tmp_path.iterdir()) == []


def test_only_the_last_ones_and_the_best_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in range(5):
        checkpoints.save(step, state(step), best=step == 1)
    assert [p.name for p in checkpoints.paths()] == ["step-000000003.pt", "step-000000004.pt"]
    assert load_checkpoint(checkpoints.best)["model"]["weight"][0] == 1


def test_the_newest_good_checkpoint_is_used(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=3)
    assert checkpoints.latest() is None
    for step in range(3):
        checkpoints.save(step, state(step))
    (tmp_path / "step-000000002.pt").write_bytes(b"PK\x03\x04 cut")
    with pytest.warns(RuntimeWarning, match="using the one before it"):
        path, found = checkpoints.latest()
    assert path.name == "step-000000001.pt"
    assert found["model"]["weight"][0] == 1


def test_random_generators_go_on_where_they_were(tmp_path):
    save_checkpoint(tmp_path / "rng.pt", {"rng": read_rng()})
    expected = torch.rand(3), np.random.rand(3), random.random(), np.random.randn()
    write_rng(load_checkpoint(tmp_path / "rng.pt")["rng"])
    again = torch.rand(3), np.random.rand(3), random.random(), np.random.randn()
    assert torch.equal(expected[0], again[0])
    assert (expected[1] == again[1]).all()
    assert expected[2:] == again[2:]


def test_a_seed_seeds_all_generators():
    def draw(seed):
        seed_rng(seed)
        return torch.rand(()).item(), np.random.rand(), random.random()

    assert draw(7) == draw(7)
    assert all(one != other for one, other in zip(draw(7), draw(2**40 + 8), strict=True))
