"""QM9: eleven properties of small organic molecules."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import zipfile
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtlkit.config.extras import import_extra
from mtlkit.config.files import replacing
from mtlkit.data.base import (
    Count,
    DataError,
    DataSet,
    SplitName,
    TensorSplit,
    find_path,
    register_dataset,
)
from mtlkit.data.files import DataDir, data_root
from mtlkit.data.randomness import generator
from mtlkit.errors import MissingExtraError, SpecError
from mtlkit.tasks import Task

Floats: TypeAlias = NDArray[np.float64]

MOST_ATOMS = 29
ELEMENTS = {"H": 1, "C": 6, "N": 7, "O": 8, "F": 9}
EV = 27.211386246  # one hartree
_PARTS = ("qm9_part1.csv", "qm9_part2.csv", "qm9_part3.csv")
_PYG_FILE = "qm9/processed/data_v3.pt"
_CACHE = 1  # format of the cache

# name: column of qm9pack, index in PyG's file, factors from their units to the field's
_PROPERTIES: dict[str, tuple[str, int, float, float]] = {
    "mu": ("Dipole_debye", 0, 1, 1),
    "alpha": ("Polarizability_bohr3", 1, 1, 1),
    "homo": ("HOMO_au", 2, 1000 * EV, 1000),
    "lumo": ("LUMO_au", 3, 1000 * EV, 1000),
    "r2": ("R2_bohr2", 5, 1, 1),
    "zpve": ("ZPVE_au", 6, 1000 * EV, 1000),
    "u0": ("InternalEnergy_0K_au", 12, 1000 * EV, 1000),
    "u": ("InternalEnergy_298K_au", 13, 1000 * EV, 1000),
    "h": ("Enthalphy_298K_au", 14, 1000 * EV, 1000),
    "g": ("GibbsFreeEnergy_298K_au", 15, 1000 * EV, 1000),
    "cv": ("Heatcapacity_Cv_cal_mol_K", 11, 1, 1),
}
PROPERTIES = tuple(_PROPERTIES)

ATOM_ENERGIES = {
    "u0": (-0.500273, -37.846772, -54.583861, -75.064579, -99.718730),
    "u": (-0.498857, -37.845355, -54.582445, -75.063163, -99.717314),
    "h": (-0.497912, -37.844411, -54.581501, -75.062219, -99.716370),
    "g": (-0.510927, -37.861317, -54.598897, -75.079532, -99.733544),
}
"""Energies of free atoms in hartree that QM9 was published with, in the order of :data:`ELEMENTS`."""


@register_dataset("qm9")
class QM9(DataSet):
    """All 130,831 molecules of QM9, in the order, units and splits of Nash-MTL's setup.

    The tasks are the dipole moment mu in debye, the polarizability alpha in bohr³, the orbital energies
    homo and lumo in meV, the spatial extent r2 in bohr², the zero-point energy zpve in meV, the energies
    u0, u, h and g of forming the molecule from free atoms in meV, and the heat capacity cv in
    cal/(mol K). Networks learn standardized targets; the metric ``mae`` is in these units.

    A molecule is a (29, 4) tensor, padded with zeros: atomic number and position in ångström of every
    atom. With PyG's file it is (29, 38): the row of an atom also has whether it is aromatic, sp, sp2 and
    sp3, its number of hydrogens, and the type of its bond with each atom.

    Args:
        data_dir: folder with the cache of parsed molecules and PyG's file.
        seed: seed of the order; the first molecules are the test set, the next the validation set.
        source: ``qm9pack``, the installed package, or ``pyg``, the file that PyTorch Geometric writes.
        train: largest number of training molecules; None for all others.
        val: number of validation molecules.
        test: number of test molecules.
    """

    summary = "QM9: eleven properties of 130,831 molecules (package qm9pack, or PyG's file)"
    origin = "the package qm9pack"
    source = f"pip install 'mtlkit[qm9]'; for source=pyg {_PYG_FILE} of torch_geometric.datasets.QM9"

    def __init__(
        self,
        data_dir: DataDir = None,
        seed: int = 0,
        *,
        source: Literal["qm9pack", "pyg"] = "qm9pack",
        train: Count | None = None,
        val: Count = 10_000,
        test: Count = 10_000,
    ) -> None:
        super().__init__(data_dir, seed)
        if source == "qm9pack":
            molecules, values = _from_package(data_dir)
        else:
            molecules, values = _from_pyg(find_path(_PYG_FILE, data_dir))
        rest = len(values) - val - test
        if rest < (train or 1):
            raise SpecError(
                f"{len(values)} molecules are too few for {train or 1} to train on, {val} to validate "
                f"and {test} to test"
            )
        order = generator(seed, self.name, "split").permutation(len(values))
        self._places = {
            "test": order[:test],
            "val": order[test : test + val],
            "train": order[test + val :][:train],
        }
        known = values[self._places["train"]]
        means, deviations = known.mean(axis=0), known.std(axis=0)
        self._molecules = molecules
        self._targets = torch.from_numpy((values - means) / deviations).float()
        self.input_shape = tuple(molecules.shape[1:])
        self.tasks = tuple(
            _task(name, float(mean), float(deviation))
            for name, mean, deviation in zip(PROPERTIES, means, deviations, strict=True)
        )

    def make_split(self, split: SplitName) -> TensorSplit:
        """Return the molecules of a split, in shuffled order."""
        places = torch.from_numpy(self._places[split])
        targets = self._targets[places]
        columns = {name: targets[:, index, None] for index, name in enumerate(PROPERTIES)}
        return TensorSplit(self._molecules[places], columns, seed=self.seed)


def _task(name: str, mean: float, deviation: float) -> Task:
    task = Task.regression(name)
    task.metrics, task.higher_is_better = {"mae": partial(_error_in, deviation)}, {"mae": False}
    task.means, task.deviations = [mean], [deviation]
    return task


def _error_in(unit: float) -> Any:
    from torchmetrics import MeanAbsoluteError

    return MeanAbsoluteError() * unit


def _from_package(data_dir: DataDir) -> tuple[Tensor, Floats]:
    """Return molecules and properties of qm9pack, from the cache or parsed."""
    # not imported, because the package needs pkg_resources, which setuptools no longer has
    found = importlib.util.find_spec("qm9pack")
    if found is None or found.origin is None:
        raise MissingExtraError("qm9pack", "qm9", "data set qm9")
    folder = Path(found.origin).parent / "data"
    size = sum((folder / name).stat().st_size for name in _PARTS)  # identifies the version
    root = data_root(data_dir)
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "mtlkit"
    cache = (home if root is None else root / "qm9") / f"qm9pack-{size}-{_CACHE}.npz"
    try:
        with open(cache, "rb") as file, np.load(file) as kept:
            return torch.from_numpy(kept["molecules"]), kept["values"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass  # the cache does not exist, or is damaged
    molecules, values = _parse(folder)
    with replacing(cache) as temporary, open(temporary, "wb") as new:
        np.savez(new, molecules=molecules, values=values)
    return torch.from_numpy(molecules), values


def _parse(folder: Path) -> tuple[NDArray[np.float32], Floats]:
    import pandas
    from rich.console import Console
    from rich.progress import track

    wanted = {column for column, *_ in _PROPERTIES.values()} | {"Elements", "XYZ_Ang"}
    table = pandas.concat(
        [pandas.read_csv(folder / name, usecols=wanted.__contains__) for name in _PARTS]
    )
    molecules = np.zeros((len(table), MOST_ATOMS, 4), dtype=np.float32)
    columns = zip(table["Elements"], table["XYZ_Ang"], strict=True)
    bar = track(
        columns, "QM9, parsed once", total=len(table), console=Console(stderr=True), transient=True
    )
    for molecule, (elements, positions) in zip(molecules, bar, strict=True):
        atoms = [ELEMENTS[symbol] for symbol in elements.strip("[]").replace("'", "").split(",")]
        flat = np.array(positions.replace("[", "").replace("]", "").split(","), dtype=np.float32)
        molecule[: len(atoms), 0] = atoms
        molecule[: len(atoms), 1:] = flat.reshape(-1, 3)
    counts = np.stack(
        [(molecules[..., 0] == number).sum(axis=1) for number in ELEMENTS.values()], axis=1
    )
    values = [
        (table[column].to_numpy() - counts @ np.array(ATOM_ENERGIES.get(name, [0.0] * 5))) * unit
        for name, (column, _, unit, _) in _PROPERTIES.items()
    ]
    return molecules, np.stack(values, axis=1)


def _from_pyg(path: Path) -> tuple[Tensor, Floats]:
    """Return molecules and properties of the file that ``torch_geometric.datasets.QM9`` writes."""
    graphs = import_extra("torch_geometric.data", "data set qm9(source=pyg)")
    try:
        with torch.serialization.safe_globals([graphs.Data]):
            data, slices, *_ = torch.load(path, weights_only=True)
        atoms, bonds = slices["x"], slices["edge_index"]
        features, values = data["x"], data["y"].double()
        place = torch.repeat_interleave(torch.arange(len(values)), atoms.diff())
        row = torch.arange(len(features)) - atoms[place]
        molecules = torch.zeros(len(values), MOST_ATOMS, 4 + 5 + MOST_ATOMS)
        # PyG's features: five columns for the element, the atomic number, and five more
        molecules[place, row, :9] = torch.cat([features[:, 5:6], data["pos"], features[:, 6:11]], dim=1)
        of = torch.repeat_interleave(torch.arange(len(values)), bonds.diff())
        start, end = data["edge_index"]  # indices within the molecule
        molecules[of, start, 9 + end] = data["edge_attr"].argmax(dim=1).float() + 1
        scales = torch.tensor([scale for *_, scale in _PROPERTIES.values()])
        places = [position for _, position, *_ in _PROPERTIES.values()]
        return molecules, (values[:, places] * scales).numpy()
    except Exception as error:  # torch raises many kinds of errors for damaged files
        raise DataError(
            f"{path} is not the file data_v3.pt of torch_geometric.datasets.QM9: {error!r}; "
            "make it again with a recent version, or read the package: qm9(source=qm9pack)"
        ) from None
