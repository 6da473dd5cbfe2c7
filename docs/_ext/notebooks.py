"""Tutorials are notebooks in Markdown: run when the site is built, with a notebook of each to download.

A page is run again after a change of its code or of mtlkit's; otherwise its outputs are kept.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import sys
from functools import partialmethod
from pathlib import Path
from typing import Any

import nbformat
from myst_nb.core.execute.cache import NotebookClientCache
from nbclient import NotebookClient
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

FOLDER = "notebooks"
REPOSITORY = "https://github.com/mtlkit/mtlkit"
# where .github/publish_site.sh puts the notebooks, as Colab opens them
_COLAB = "https://colab.research.google.com/github/mtlkit/mtlkit/blob/gh-pages/latest"
_EXAMPLES = ("transformers", "peft")
# what a page imports beside `mtlkit[bench]`
_EXTRAS = {
    "examples/huggingface": "bench,huggingface",
    "examples/lora": "bench,huggingface",
    "deploy": "bench,export",
}
_PACKAGES = {"examples/lightning": "lightning", "deploy": "onnxruntime"}
_CLONED = ("examples/dense",)  # read files of the repository
_start_client = NotebookClientCache.start_client
_ROLE = re.compile(r"\{[\w:]+\}`~?([^`]*)`")
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:)([^)]*)\)")


def outputs_folder(build: Path, package: Path) -> Path:
    """Return the folder of the outputs, one folder per state of the package; older ones are removed."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    folder = build / f"outputs-{digest.hexdigest()[:16]}"
    for old in build.glob("outputs-*"):
        if old != folder:
            shutil.rmtree(old)
    return folder


def examples_folder(root: Path) -> str | None:
    """Return where the packages of `mtlkit[huggingface]` are: in the folder that `make test` fills, or "" if installed."""
    if all(importlib.util.find_spec(name) for name in _EXAMPLES):
        return ""
    folder = root / ".venv" / "examples"
    return str(folder) if all((folder / name).is_dir() for name in _EXAMPLES) else None


def prepare_kernels(root: Path) -> None:
    """Let the kernels, which inherit this environment, find this mtlkit, its command and the style of figures."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]).rstrip(
        os.pathsep
    )
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    os.environ["MATPLOTLIBRC"] = str(Path(__file__).parent / "matplotlibrc")
    os.environ["MTLKIT_EXAMPLES"] = examples_folder(root) or ""
    # IPython sets FORCE_COLOR, which would bring progress bars and bold letters into the outputs
    os.environ.update(COLUMNS="96", NO_COLOR="1", TTY_COMPATIBLE="0")
    # small networks: more threads only wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def add_link(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Put the links to the notebook below the title."""
    if not _executed(app, page).exists() or doctree is None:
        return
    target = f"{'../' * page.count('/')}{FOLDER}/{page}.ipynb"
    links = (
        f'<a href="{_COLAB}/{FOLDER}/{page}.ipynb">Open in Colab</a> · '
        f'<a href="{target}" download>Download as a notebook</a>'
    )
    link = f'<p class="notebook-download">{links}</p>'
    context["body"] = context["body"].replace("</h1>", f"</h1>\n{link}", 1)


def write_notebooks(app: Sphinx, failure: Exception | None) -> None:
    """Write the notebooks that the pages link to, with their outputs."""
    if failure is not None or app.builder.format != "html":
        return
    for page in app.env.found_docs:
        if not _executed(app, page).exists():
            continue
        notebook = nbformat.reads(_executed(app, page).read_text(), as_version=4)
        cells = [c for c in notebook.cells if "remove-cell" not in c.metadata.get("tags", [])]
        if not any(cell.cell_type == "code" for cell in cells):
            raise ExtensionError(f"the notebook of {page} has no code")
        for cell in cells:
            if cell.cell_type == "markdown":
                cell.source = plain_markdown(cell.source)
            elif cell.cell_type == "code":  # progress and warnings are of this machine
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        notebook.cells = [*install_cells(page), *cells]
        path = Path(app.outdir, FOLDER, f"{page}.ipynb")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(notebook, indent=1))


def install_cells(page: str) -> list[Any]:
    """Make the badge of Colab, and a cell that installs what the page imports."""
    badge = f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({_COLAB}/{FOLDER}/{page}.ipynb)"
    if page in _CLONED:
        code = f'!git clone -q {REPOSITORY}\n%cd mtlkit\n%pip install -q ".[bench]"'
    else:
        extras = _EXTRAS.get(page, "bench")
        code = (
            f'%pip install -q "mtlkit[{extras}] @ git+{REPOSITORY}" {_PACKAGES.get(page, "")}'.rstrip()
        )
    code = f"# there is no release yet; skip this cell if mtlkit is installed\n{code}"
    return [nbformat.v4.new_markdown_cell(badge), nbformat.v4.new_code_cell(code)]


def plain_markdown(text: str) -> str:
    """Return Markdown without roles and without links to other pages, which lead nowhere outside the site."""
    text = _ROLE.sub(lambda match: f"`{match[1].rsplit('/', 1)[-1]}`", text)
    return _LINK.sub(lambda match: match[1] or f"`{Path(match[2]).stem}`", text)


def start_with_outputs(client: NotebookClientCache) -> None:
    """Start a client, and put outputs from the cache into the notebook that is written: myst-nb only shows them."""
    written = client.notebook
    _start_client(client)
    written.cells = client.notebook.cells


def _executed(app: Sphinx, page: str) -> Path:
    return Path(app.outdir).parent / "jupyter_execute" / f"{page}.ipynb"


def setup(app: Sphinx) -> dict[str, object]:
    """Register with Sphinx."""
    # a command's output arrives in pieces, which are not lines
    NotebookClient.__init__ = partialmethod(NotebookClient.__init__, coalesce_streams=True)
    NotebookClientCache.start_client = start_with_outputs
    app.connect("html-page-context", add_link)
    app.connect("build-finished", write_notebooks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
