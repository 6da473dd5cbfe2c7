"""Check files that no program runs: links, drawings, and what a release is made from.

Usage: python docs/check_files.py. It prints what is wrong, and ends with code 1 if anything is.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import draw_architectures
import yaml

import mtlkit
from mtlkit.config.registry import architectures

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PAGES = [*ROOT.glob("*.md"), *ROOT.glob(".github/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]
"""Pages that Sphinx does not read; on the site, a dead link stops the build."""
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
SITE = re.compile(r"\]\(https://mtlkit\.github\.io/mtlkit/latest/([\w/]+)\.html")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
CONDA_NAMES = {"torch": "pytorch"}


def links() -> Iterator[str]:
    """Links that lead to no file, or to no page of the site."""
    for page in PAGES:
        text = page.read_text()
        for target in LINK.findall(CODE.sub("code", text)):
            if not (page.parent / target).exists():
                yield f"{page.relative_to(ROOT)}: no file {target}"
        for name in SITE.findall(text):
            written = name.startswith(("methods/", "results/"))  # when the site is built
            if not written and not (ROOT / "docs" / f"{name}.md").exists():
                yield f"{page.relative_to(ROOT)}: no page {name} on the site"


def make_targets() -> Iterator[str]:
    """Commands of pages and workflows that do not exist."""
    for page in ("README.md", "CONTRIBUTING.md", "docs/start.md", "docs/speed.md"):
        for target in re.findall(r"(?:`|\$ )make ([a-z-]+)", (ROOT / page).read_text()):
            if target not in TARGETS:
                yield f"{page}: make has no target {target}"
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
        for line in [step["run"] for job in jobs for step in job["steps"] if "run" in step]:
            command, *words = line.split()
            named = {word for word in words if re.fullmatch(r"[a-z-]+", word)}
            unknown = named - TARGETS if command == "make" else set()
            if unknown or (command.startswith(".") and not (ROOT / command).is_file()):
                yield f"{workflow.name}: nothing to run for {line!r}"


def drawings() -> Iterator[str]:
    """Drawings that are not what their script draws, and architectures without one."""
    for name, text in draw_architectures.DRAWINGS.items():
        if (ROOT / "docs" / "images" / f"{name}.svg").read_text() != text:
            yield f"{name}.svg is not what docs/draw_architectures.py draws; run it again"
    page = (ROOT / "docs" / "architectures.md").read_text()
    for name in mtlkit.list_architectures():
        if architectures.get(name).__module__.startswith("mtlkit."):
            drawing = "paper_nets" if name.startswith("paper_") else name
            if f"images/{drawing}.svg" not in page or f"`{name}" not in page:
                yield f"architectures.md lacks {name} or its drawing"


def versions() -> Iterator[str]:
    """Versions and requirements that differ between the files of a release."""
    # the recipe's only templates are values, so a word in their place makes it plain YAML
    text = (ROOT / "packaging" / "conda" / "meta.yaml").read_text()
    recipe: Any = yaml.safe_load(re.sub(r"\{\{.*?\}\}", "word", re.sub(r"\{%.*?%\}", "", text)))
    wanted = {f"python {PROJECT['requires-python']}"}
    for requirement in PROJECT["dependencies"]:
        name, version = re.findall(r"([\w-]+)(.*)", requirement)[0]
        wanted.add(f"{CONDA_NAMES.get(name, name)} {version}")
    if set(recipe["requirements"]["run"]) != wanted:
        yield f"the conda recipe must need {', '.join(sorted(wanted))}"
    if recipe["build"]["entry_points"] != [f"mtlkit = {PROJECT['scripts']['mtlkit']}"]:
        yield "the conda recipe starts something else than pyproject.toml"
    if recipe["about"]["summary"] != PROJECT["description"]:
        yield "the conda recipe and pyproject.toml describe mtlkit differently"
    version = mtlkit.__version__
    if yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] != version:
        yield f"CITATION.cff is not of version {version}"
    if not re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE):
        yield f"CHANGELOG.md has no entry {version}"
    tested = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]["test"]
    promised = [c.split()[-1] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    if tested["strategy"]["matrix"]["python"] != promised:
        yield f"test.yml must test Python {', '.join(promised)}"


def package_index() -> Iterator[str]:
    """What is wrong with the README as the package index shows it: links must be whole."""
    settings = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    readme = shown = (ROOT / "README.md").read_text()
    for each in settings["substitutions"]:
        shown = re.sub(each["pattern"], each["replacement"], shown)
    fences = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
    if fences.findall(shown) != fences.findall(readme):
        yield "the substitutions of pyproject.toml change code of README.md"
    for target in re.findall(r"\]\((?!https://)([^)]*)", fences.sub("", shown)):
        yield f"the package index cannot follow {target} of README.md"


if __name__ == "__main__":
    checks = (links, make_targets, drawings, versions, package_index)
    problems = [problem for check in checks for problem in check()]
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(bool(problems))
