"""Write the five tables as CSV files, from what installed packages and the data folder hold."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd

from mtlkit.data.base import find_path
from mtlkit.errors import MissingExtraError

SMILES_COUNTS = {
    "carbon": "[Cc]",
    "nitrogen": "[Nn]",
    "oxygen": "[Oo]",
    "fluorine": "F",
    "aromatic": "[cno]",
    "double_bonds": "=",
    "triple_bonds": "#",
    "branches": r"\(",
    "ring_ends": r"\d",
    "charges": r"[+-]",
}
"""Regular expressions that are counted in a molecule's SMILES."""


def wine() -> pd.DataFrame:
    """178 wines of three cultivars, scikit-learn's."""
    from sklearn.datasets import load_wine

    found = load_wine(as_frame=True)
    frame = found.frame.rename(columns={"target": "cultivar"})
    return frame.assign(cultivar=[found.target_names[each] for each in frame["cultivar"]])


def tumors() -> pd.DataFrame:
    """569 tumors, scikit-learn's breast cancer: means and errors, two of the worst values, diagnosis."""
    from sklearn.datasets import load_breast_cancer

    frame = load_breast_cancer(as_frame=True).frame
    inputs = [name for name in frame if "mean" in name or "error" in name]
    targets = {"worst_area": "worst area", "worst_concavity": "worst concavity"}
    made = frame[inputs].copy()
    for name, column in targets.items():
        made[name] = frame[column]
    return made.assign(malignant=1 - frame["target"])


def countries() -> pd.DataFrame:
    """Gapminder's 142 countries every five years from 1952 to 2007, from plotly."""
    import plotly.data

    frame = plotly.data.gapminder()
    return frame[["country", "continent", "year", "pop", "lifeExp", "gdpPercap"]]


def molecules() -> pd.DataFrame:
    """10,000 molecules of QM9, from qm9pack: counts, and three properties."""
    spec = importlib.util.find_spec("qm9pack")  # an import would need pkg_resources
    if spec is None or spec.origin is None:
        raise MissingExtraError("qm9pack", "qm9", "the table of molecules")
    columns = {
        "Dipole_debye": "dipole",
        "HOMO_LUMO_gap_au": "gap",
        "Heatcapacity_Cv_cal_mol_K": "heat_capacity",
    }
    folder = Path(spec.origin).parent / "data"
    files = [folder / f"qm9_part{part}.csv" for part in (1, 2, 3)]
    read = [pd.read_csv(file, usecols=["SMILES", "Elements", *columns]) for file in files]
    frame = pd.concat(read, ignore_index=True).sample(10_000, random_state=0)
    made = pd.DataFrame({"hydrogen": frame["Elements"].str.count("'H'")})
    for name, pattern in SMILES_COUNTS.items():
        made[name] = frame["SMILES"].str.count(pattern)
    return made.join(frame[list(columns)].rename(columns=columns))


def persons() -> pd.DataFrame:
    """12,000 persons of Census-Income (KDD), from the data folder; columns c1 to c42."""
    path = find_path("census/census_income_train.csv.gz", None)
    names = [f"c{number}" for number in range(1, 43)]
    frame = pd.read_csv(path, header=None, names=names, skipinitialspace=True)
    return frame.sample(12_000, random_state=0)


TABLES: Mapping[str, Callable[[], pd.DataFrame]] = {
    "wine": wine,
    "tumors": tumors,
    "countries": countries,
    "molecules": molecules,
    "persons": persons,
}


def write_tables(folder: Path) -> None:
    """Write the tables that are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in TABLES.items():
        path = folder / f"{name}.csv"
        if not path.exists():
            make().reset_index(drop=True).to_csv(path, index=False)
