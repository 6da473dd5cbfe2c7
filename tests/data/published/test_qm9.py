"""QM9 from a package and a file in their real formats, with a handful of molecules."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

import mtlkit
from mtlkit.data.published import qm9
from mtlkit.errors import MissingExtraError, SpecError

HEADER = (
    "XYZ_file,Index,SMILES,InChi,N_atoms,Stoichiometry,Elements,XYZ_Ang,Mulliken_pop,Harmonic_Freq_cmi,"
    "RotA_GHz,RotB_GHz,RotC_GHz,Dipole_debye,Polarizability_bohr3,HOMO_au,LUMO_au,HOMO_LUMO_gap_au,R2_bohr2,"
    "ZPVE_au,InternalEnergy_0K_au,InternalEnergy_298K_au,Enthalphy_298K_au,GibbsFreeEnergy_298K_au,"
    "Heatcapacity_Cv_cal_mol_K"
)
METHANE = (
    "\"dsgdb9nsd_000001.xyz\",1,\"C\",\"InChI=1S/CH4/h1H4\",5,\"[4,1,0,0,0]\",\"['C','H','H','H','H']\","
    '"[[-0.0126981359,1.0858041578,0.0080009958],[0.002150416,-0.0060313176,0.0019761204],'
    "[1.0117308433,1.4637511618,0.0002765748],[-0.540815069,1.4475266138,-0.8766437152],"
    '[-0.5238136345,1.4379326443,0.9063972942]]","[-0.535689,0.133921,0.133922,0.133923,0.133923]",'
    '"[1341.307]",157.7118,157.70997,157.70699,0.,13.21,-0.3877,0.1171,0.5048,35.3641,0.044749,-40.47893,'
    "-40.476062,-40.475117,-40.498597,6.469"
)
# the first row of PyG's targets, as its documentation orders them; energies in eV
METHANE_PYG = [
    *(0.0, 13.21, -10.5499, 3.1865, 13.7363, 35.3641, 1.2177, -1101.4878, -1101.4098, -1101.3840),
    *(-1102.0229, 6.469, -17.1722, -17.2868, -17.3897, -16.1519, 157.7118, 157.7100, 157.7070),
]


def water(index, generator):
    """A line of the package's table: a molecule of water, a little different every time."""
    x, y = (float(f"{number:.4f}") for number in generator.normal(size=2))
    values = [float(f"{number:.6f}") for number in generator.normal(size=6)]
    energies = [f"{-76.4 + number:.6f}" for number in 0.01 * generator.normal(size=4)]
    numbers = ",".join(map(str, (*values[:4], 0.5, *values[4:], *energies, f"{6 + x:.4f}")))
    return (
        f'"dsgdb9nsd_{index:06}.xyz",{index},"O","InChI=1S/H2O/h1H2",3,"[2,0,0,1,0]","[\'O\',\'H\',\'H\']",'
        f'"[[{x},0.,0.],[1.,{y},0.],[0.,0.,1.]]","[0.]","[1.]",1.,1.,1.,{numbers}'
    )


def write_package(folder):
    """Write a package of this name with 40 molecules, methane first."""
    random = np.random.default_rng(0)
    lines = [METHANE, *(water(index, random) for index in range(2, 41))]
    data = folder / "qm9pack/data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").write_text("raise ImportError('is read, not imported')")
    for part, start in enumerate((0, 15, 30), start=1):
        text = "\n".join([HEADER, *lines[start : start + 15][: 40 - start]]) + "\n"
        (data / f"qm9_part{part}.csv").write_text(text)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """That package where Python finds it, and a folder for the cache."""
    write_package(tmp_path / "site")
    monkeypatch.delitem(sys.modules, "qm9pack", raising=False)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MTLKIT_DATA", raising=False)


SMALL = "qm9(train=20, val=8, test=6)"


def test_methane_has_the_values_of_the_field(package):
    molecules, values = qm9._from_package(None)
    assert molecules.shape == (40, 29, 4)
    assert molecules[0, :6, 0].tolist() == [6, 1, 1, 1, 1, 0]
    assert (molecules[0, 0, 1:] - molecules[0, 1, 1:]).norm() == pytest.approx(1.0919, abs=1e-3)
    found = dict(zip(qm9.PROPERTIES, values[0], strict=True))
    # by hand: U0 - E(C) - 4 E(H) = -40.47893 + 37.846772 + 4 * 0.500273 hartree, times 27.2114 eV
    assert found["u0"] == pytest.approx(
        1000 * 27.211386 * (-40.47893 + 37.846772 + 4 * 0.500273), rel=1e-6
    )
    targets = [METHANE_PYG[place] for place in (0, 1, 2, 3, 5, 6, 12, 13, 14, 15, 11)]
    energies = ("homo", "lumo", "zpve", "u0", "u", "h", "g")
    for name, target in zip(qm9.PROPERTIES, targets, strict=True):
        scale = 1000 if name in energies else 1  # meV
        assert found[name] == pytest.approx(scale * target, rel=3e-5, abs=1e-9)


def test_the_molecules_are_split_without_overlap_and_anew_for_every_seed(package):
    data = mtlkit.load_dataset(SMALL)
    assert [len(data.split(name)) for name in ("train", "val", "test")] == [20, 8, 6]
    rows = torch.cat([data.train.inputs, data.val.inputs, data.test.inputs]).flatten(1)
    assert len(rows.unique(dim=0)) == 34
    other = mtlkit.load_dataset(SMALL, seed=1)
    assert not torch.equal(other.test.inputs, data.test.inputs)
    assert len(mtlkit.load_dataset("qm9(val=8, test=6)").train) == 26
    with pytest.raises(SpecError, match="too few"):
        mtlkit.load_dataset("qm9(val=20, test=20)")


def test_targets_are_standardized_by_the_training_molecules_and_errors_are_in_units(package):
    data = mtlkit.load_dataset(SMALL)
    assert data.task_names == qm9.PROPERTIES
    for target in data.train.targets.values():
        assert target.shape == (20, 1)
        assert target.mean() == pytest.approx(0, abs=1e-5)
        assert target.std(correction=0) == pytest.approx(1, abs=1e-4)
    task = data.tasks[data.task_names.index("u0")]
    metrics = task.make_metrics()
    task.update(metrics, torch.zeros(2, 1), torch.tensor([[0.5], [-1.5]]))
    assert task.compute(metrics) == {"mae": pytest.approx(task.deviations[0])}
    decoded = task.decode(data.train.targets["u0"])["u0"]
    known = qm9._from_package(None)[1][:, qm9.PROPERTIES.index("u0")]
    assert np.isin(decoded.round(1), known.round(1)).all()


def test_the_tables_are_parsed_once(package, tmp_path, monkeypatch):
    first = mtlkit.load_dataset(SMALL)
    (cache,) = (tmp_path / "cache/mtlkit").glob("*.npz")

    def parse(folder):
        raise AssertionError("parsed again")

    with monkeypatch.context() as patched:
        patched.setattr(qm9, "_parse", parse)
        assert torch.equal(mtlkit.load_dataset(SMALL).train.inputs, first.train.inputs)
    cache.write_bytes(cache.read_bytes()[:1000])  # damaged: parsed anew
    assert torch.equal(mtlkit.load_dataset(SMALL).train.inputs, first.train.inputs)


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr(qm9.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"mtlkit\[qm9\]"):
        mtlkit.load_dataset("qm9")


@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")
def test_the_file_of_pyg_has_bonds_and_the_same_targets(tmp_path):
    from torch_geometric.data import Data, InMemoryDataset

    features = torch.zeros(5, 11)
    features[0, [1, 5]] = torch.tensor([1.0, 6.0])
    features[0, 9:] = torch.tensor([1.0, 4.0])  # sp3, four hydrogens
    features[1:, [0, 5]] = 1.0
    start = torch.tensor([0, 0, 0, 0, 1, 2, 3, 4])
    edges = torch.stack([start, torch.tensor([1, 2, 3, 4, 0, 0, 0, 0])])
    methane = Data(
        x=features,
        pos=torch.randn(5, 3),
        edge_index=edges,
        edge_attr=torch.eye(4)[torch.zeros(8, dtype=torch.long)],
        y=torch.tensor([METHANE_PYG]),
        name="gdb_1",
    )
    others = [methane.clone() for _ in range(9)]
    for other in others:
        other.y = other.y + torch.randn(1, 19)
    (tmp_path / "qm9/processed").mkdir(parents=True)
    InMemoryDataset.save([methane, *others], str(tmp_path / "qm9/processed/data_v3.pt"))
    molecules, values = qm9._from_pyg(tmp_path / "qm9/processed/data_v3.pt")
    assert molecules.shape == (10, 29, 38)
    assert molecules[0, 0, :9].tolist() == [6, *methane.pos[0].tolist(), 0, 0, 0, 1, 4]
    assert molecules[0, 0, 9:15].tolist() == [0, 1, 1, 1, 1, 0]
    assert molecules[0, 1, 9:15].tolist() == [1, 0, 0, 0, 0, 0]
    assert torch.equal(molecules[9, :5, 1:4], methane.pos)
    assert values[0][:4] == pytest.approx([0, 13.21, -10549.9, 3186.5])
    assert values[0][6] == pytest.approx(-17172.2)
    data = mtlkit.load_dataset("qm9(source=pyg, val=2, test=2)", data_dir=tmp_path)
    assert data.input_shape == (29, 38)
    assert len(data.train) == 6
    (tmp_path / "qm9/processed/data_v3.pt").write_bytes(b"damaged")
    with pytest.raises(mtlkit.data.DataError, match="data_v3"):
        mtlkit.load_dataset("qm9(source=pyg)", data_dir=tmp_path)
