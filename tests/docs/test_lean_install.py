"""``pip install mtlkit`` brings torch, NumPy and SciPy; what needs more names the extra."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from mtlkit.config.extras import EXTRAS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULES = {"pyyaml": "yaml", "scikit-learn": "sklearn"}


def closure(requirements: list[str]) -> set[str]:
    """Names of the distributions that these requirements bring, theirs included."""
    found: set[str] = set()
    pending = list(requirements)
    while pending:
        wanted = Requirement(pending.pop())
        if (wanted.marker is None or wanted.marker.evaluate({"extra": ""})) and wanted.name not in found:
            found.add(wanted.name)
            pending += distribution(wanted.name).requires or []
    return found


@pytest.fixture(scope="module")
def base_install(tmp_path_factory):
    """A folder like the site-packages of an environment that holds the base dependencies alone."""
    folder = tmp_path_factory.mktemp("site")
    for name in closure(PROJECT["dependencies"]):
        installed = distribution(name)
        for top in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
            link = folder / top
            if not link.exists():
                link.symlink_to(Path(str(installed.locate_file(top))))
    return folder


def run(base_install: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Start Python without its own packages."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(base_install), str(ROOT)]),
        "COLUMNS": "200",
    }
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        env=environment,
        cwd=base_install,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_readmes_loop_runs_with_the_base_dependencies(base_install):
    ended = run(base_install, str(ROOT / "tests/docs/run_blocks.py"), str(ROOT / "README.md"))
    assert ended.returncode == 0, ended.stderr
    assert "tensor(" in ended.stdout


BASE = """
import mtlkit, torch
model = mtlkit.create_architecture("mmoe(experts=2, backbone=mlp(4, inputs=3))", 2, method="upgrad")
outputs = model(torch.randn(5, 3))
model.method.total([output.square().mean() for output in outputs.values()]).backward()
mtlkit.create_method("nash_mtl", 2).combine(torch.eye(2))
for name in ("Trainer", "tune"):
    try:
        getattr(mtlkit, name)
    except mtlkit.MtlkitError as error:
        print(error)
try:
    mtlkit.create_method("rotograd(backend=geotorch)", 2, feature_dim=4)
except mtlkit.MtlkitError as error:
    print(error)
try:
    model.save_pretrained("folder")
except mtlkit.MtlkitError as error:
    print(error)
try:
    from mtlkit.integrations.libmtl import load_trainer
    load_trainer()
except mtlkit.MtlkitError as error:
    print(error)
"""


def test_architectures_and_solvers_run_and_all_else_names_its_extra(base_install):
    ended = run(base_install, "-c", BASE)
    assert ended.returncode == 0, ended.stderr
    named = re.findall(r"pip install 'mtlkit\[(\w+)\]'", ended.stdout)
    assert named in [["train", search, "geotorch", "train", "vision"] for search in ("train", "tune")]


def test_the_command_line_without_typer_is_one_sentence(base_install):
    ended = run(base_install, "-m", "mtlkit", "methods")
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert "pip install 'mtlkit[train]'" in ended.stderr


WITHOUT = """
import os, sys
import torch  # once for all
for package, arguments in {needs}.items():
    if os.fork():
        _, status = os.wait()
        print(package, os.waitstatus_to_exitcode(status), flush=True)
    else:
        os.dup2(os.open(package + ".txt", os.O_CREAT | os.O_WRONLY), 2)
        sys.modules[package] = None  # Python then finds no such module
        sys.argv = ["mtlkit", *arguments]
        from mtlkit.__main__ import main
        main()
        os._exit(0)
"""
NEEDS = {
    "accelerate": ("train --data multidigits --epochs 1", "train"),
    "yaml": ("train --data multidigits --epochs 1", "train"),
    "pydantic": ("compare --demo", "train"),
    "optuna": ("tune --data multidigits --methods sum --trials 1", "tune"),
    "rich": ("methods", "train"),
    "jinja2": ("report units", "train"),
    "pandas": ("data table(file=people.csv,targets={age:regression})", "table"),
}


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """The exit code and the errors of a command, by the package that it does not find."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "people.csv").write_text("age,size\n" + "".join(f"{n},{n}\n" for n in range(40)))
    shutil.copytree(ROOT / "benchmarks/results/units", folder / "units")
    commands = {package: command.split() for package, (command, _) in NEEDS.items()}
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(needs=commands)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    codes = dict(line.split() for line in ended.stdout.splitlines() if line.split()[0] in NEEDS)
    return {package: (codes[package], (folder / f"{package}.txt").read_text()) for package in NEEDS}


@pytest.mark.parametrize("package", NEEDS)
def test_a_command_without_its_package_names_the_extra(package, without):
    code, errors = without[package]
    assert code == "1", errors
    assert f"pip install 'mtlkit[{NEEDS[package][1]}]'" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_brings_the_modules_that_its_errors_name(extra):
    names = {Requirement(line).name.lower() for line in PROJECT["optional-dependencies"][extra]}
    modules = {MODULES.get(name, name.replace("-", "_")) for name in names - {"mtlkit"}}
    assert modules == set(EXTRAS[extra])


UNWANTED = set("torch._dynamo pandas pydantic geotorch accelerate scipy torchmetrics rich".split())
UNWANTED_LATER = set(
    "accelerate torchmetrics timm segmentation_models_pytorch torchvision matplotlib pytest hypothesis".split()
)
START = """
import sys, mtlkit
assert "torch" not in sys.modules
mtlkit.create_method("pcgrad", tasks=2)
mtlkit.create_method("rotograd", tasks=2, feature_dim=4)
print(sorted({unwanted} & set(sys.modules)))
mtlkit.list_methods(), mtlkit.list_architectures(), mtlkit.create_architecture
mtlkit.Task.normals("n"), mtlkit.param_groups
mtlkit.testing.check_architecture, mtlkit.testing.check_method("scale", examples=2)
print(sorted({unwanted_later} & set(sys.modules)))
"""


def test_nothing_is_imported_before_it_is_needed():
    code = START.format(unwanted=UNWANTED, unwanted_later=UNWANTED_LATER)
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.stdout.split() == ["[]", "[]"], ended.stdout + ended.stderr


@pytest.mark.slow
def test_the_wheel_brings_its_base_dependencies_and_runs_the_readmes_loop(tmp_path):
    """As a user installs it: from the package index, into an empty environment."""
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "empty")], check=True)
    python = str(tmp_path / "empty" / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    listed = subprocess.run([python, "-m", "pip", "list"], check=True, capture_output=True, text=True)
    names = {line.split()[0].lower() for line in listed.stdout.splitlines()[2:]}
    assert {"mtlkit", "torch", "numpy", "scipy", "threadpoolctl"} <= names
    assert names.isdisjoint({"accelerate", "pandas", "torchvision", "typer", "torchmetrics"})
    blocks = [str(ROOT / "tests/docs/run_blocks.py"), str(ROOT / "README.md")]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    ended = subprocess.run(
        [python, *blocks], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert ended.returncode == 0, ended.stderr
    command = str(tmp_path / "empty" / "bin" / "mtlkit")
    refused = subprocess.run([command, "methods"], env=environment, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "pip install 'mtlkit[train]'" in refused.stderr
