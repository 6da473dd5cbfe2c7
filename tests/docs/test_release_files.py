"""What a release is made from says the same everywhere: versions, dependencies, targets of the Makefile."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import mtlkit

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CONDA_NAMES = {"torch": "pytorch"}


def conda_recipe() -> dict:
    """The recipe; its only templates are values, so that a word in their place makes it plain YAML."""
    text = (ROOT / "packaging" / "conda" / "meta.yaml").read_text()
    return yaml.safe_load(re.sub(r"\{\{.*?\}\}", "word", re.sub(r"\{%.*?%\}", "", text)))


def lines_run(workflow: Path) -> list[str]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


def test_the_conda_recipe_asks_for_the_same_versions():
    wanted = {f"python {PROJECT['requires-python']}"}
    for requirement in PROJECT["dependencies"]:
        name, version = re.fullmatch(r"([\w-]+)(.*)", requirement).groups()
        wanted.add(f"{CONDA_NAMES.get(name, name)} {version}")
    recipe = conda_recipe()
    assert set(recipe["requirements"]["run"]) == wanted
    assert recipe["build"]["entry_points"] == [f"mtlkit = {PROJECT['scripts']['mtlkit']}"]
    assert recipe["about"]["summary"] == PROJECT["description"]


def test_the_citation_has_the_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == mtlkit.__version__
    assert re.search(
        rf"^## {re.escape(mtlkit.__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M
    )


def test_the_workflow_tests_the_versions_of_python_that_are_promised():
    matrix = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]["test"][
        "strategy"
    ]
    promised = [c.split()[-1] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert matrix["matrix"]["python"] == promised


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_targets_and_files_that_exist(workflow):
    for line in lines_run(workflow):
        command, *words = line.split()
        if command == "make":
            assert {word for word in words if re.fullmatch(r"[a-z-]+", word)} <= TARGETS, line
        elif command.startswith("."):
            assert (ROOT / command).is_file(), line


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/start.md", "docs/speed.md"])
def test_a_page_names_targets_that_exist(page):
    text = (ROOT / page).read_text()
    assert set(re.findall(r"(?:`|\$ )make ([a-z-]+)", text)) <= TARGETS


def test_the_package_index_gets_whole_links_and_the_same_code():
    settings = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    assert settings["fragments"] == [{"path": "README.md"}]
    readme = shown = (ROOT / "README.md").read_text()
    for each in settings["substitutions"]:
        shown = re.sub(each["pattern"], each["replacement"], shown)
    fences = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
    assert fences.findall(shown) == fences.findall(readme)
    targets = re.findall(r"\]\((?!https://)([^)]*)", fences.sub("", shown))
    assert targets == []
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]*)", shown)
    assert pictures
    assert all(target.startswith("https://") for target in pictures)
