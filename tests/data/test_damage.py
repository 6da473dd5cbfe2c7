"""Files with any damage are read, or refused by an error of mtlkit; nothing else escapes."""

import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mtlkit.data import load_dataset
from mtlkit.errors import MtlkitError
from tests.data.published.test_dense import write_mtan
from tests.data.published.test_digit_pairs import write_mnist, write_svhn
from tests.data.published.test_images import write_batches, write_celeba

EXAMPLES = 60

SETS = {
    "multimnist": ("mnist", lambda folder: write_mnist(folder, suffix="")),
    "multifashion": ("fashion_mnist", write_mnist),
    "multisvhn": ("svhn", write_svhn),
    "cifar10": ("cifar10", lambda folder: write_batches(folder, per_batch=4)),
    "celeba": ("celeba", write_celeba),
    "nyuv2": ("nyuv2", lambda folder: write_mtan(folder, train=4, val=2, size=(8, 12))),
}


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    root = tmp_path_factory.mktemp("originals")
    for folder, write in SETS.values():
        write(root / folder)
    return root


@st.composite
def damage(draw):
    """A function from bytes to other bytes: cut, change, or replace some."""
    kind = draw(st.sampled_from(["cut", "flip", "zero", "noise", "head"]))
    share, value = draw(st.floats(0, 1)), draw(st.integers(0, 255))
    noise = draw(st.binary(min_size=1, max_size=40))

    def apply(content: bytes) -> bytes:
        # damage near the start meets the headers
        limit = len(content) if kind in ("cut", "zero") else min(len(content), 300)
        place = int(share * max(limit - 1, 0))
        if kind == "cut":
            return content[:place]
        if kind == "flip":
            return content[:place] + bytes([value]) + content[place + 1 :]
        if kind == "zero":
            return content[:place] + bytes(len(content) - place)
        if kind == "noise":
            return noise
        return content[:place] + noise + content[place + len(noise) :]

    return apply


@pytest.mark.parametrize("name", SETS)
def test_damaged_files_are_read_or_refused(name, originals, tmp_path):
    folder = SETS[name][0]
    files = sorted(p.relative_to(originals) for p in (originals / folder).rglob("*") if p.is_file())

    @given(st.sampled_from(files), damage())
    @settings(max_examples=EXAMPLES, deadline=None)
    def check(file: Path, change):
        shutil.copytree(originals / folder, tmp_path / folder, dirs_exist_ok=True)
        target = tmp_path / file
        target.write_bytes(change(target.read_bytes()))
        data = load_dataset(name, data_dir=tmp_path)
        for split in ("train", "val", "test"):
            try:
                samples = data.split(split)
                for index in range(len(samples)):
                    image, _ = samples[index]
                    assert image.shape == data.input_shape
                    assert image.dtype == torch.float32
            except MtlkitError:
                continue

    check()
