"""Configuration of the documentation site; ``make docs`` builds it without network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).parent / "_ext")]

from method_pages import cost_table, write_method_pages  # noqa: E402
from notebooks import examples_folder, outputs_folder, prepare_kernels  # noqa: E402
from rules_table import rules_table  # noqa: E402
from settings_table import settings_table  # noqa: E402

from benchmarks.draw_results import write_pages  # noqa: E402
from mtlkit import __version__  # noqa: E402
from mtlkit.experiments.compare_config import CompareConfig, MethodsConfig  # noqa: E402
from mtlkit.experiments.entries import MethodSettings  # noqa: E402
from mtlkit.experiments.tuning import TuneConfig  # noqa: E402
from mtlkit.testing import LAWS  # noqa: E402
from mtlkit.training.config import TrainConfig, TrainingSettings  # noqa: E402

project = "mtlkit"
release = version = __version__
extensions = [
    "myst_nb",
    "notebooks",
    "sphinx.ext.autodoc",
    "method_pages",
    "sphinx.ext.napoleon",
    "mathml",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_inline"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_cache_path = str(outputs_folder(Path(__file__).parent / "_build", ROOT / "mtlkit"))
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 600  # of a cell; none takes that long unless the machine is busy
nb_execution_excludepatterns = (
    [] if examples_folder(ROOT) is not None else ["examples/huggingface.md", "examples/lora.md"]
)
nb_merge_streams = True
nb_output_stderr = "remove"  # progress, and paths of this machine
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"mtlkit {release}"
html_show_copyright = False
html_static_path = ["_static"]
autodoc_member_order = "bysource"
autodoc_mock_imports = ["transformers"]  # which may lie apart; see the Makefile
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_use_ivar = True
suppress_warnings = ["myst.header", "myst-nb.lexer"]  # a page that is not executed has no lexer
html_math_renderer = "mathml"
html_css_files = ["site.css"]
html_js_files = ["sort.js"]
html_theme_options = {
    "source_repository": "https://github.com/mtlkit/mtlkit/",
    "source_branch": "main",
    "source_directory": "docs/",
}
copybutton_prompt_text = "$ "


def write_settings_tables() -> None:
    """Write what `docs/settings.md` includes, from the models that check the settings."""
    folder = Path(__file__).parent / "settings_tables"
    folder.mkdir(exist_ok=True)
    tables = {
        "train": settings_table(TrainConfig),
        "compare": settings_table(CompareConfig, leave_out=TrainingSettings),
        "method": settings_table(MethodSettings),
        "tune": settings_table(TuneConfig, leave_out=MethodsConfig),
    }
    for name, text in tables.items():
        (folder / f"{name}.txt").write_text(text)


def write_rules() -> None:
    """Write what `docs/choose.md` includes, from the rules of the diagnosis."""
    (Path(__file__).parent / "settings_tables" / "rules.txt").write_text(rules_table())


def write_costs() -> None:
    """Write what `docs/speed.md` includes: a step with every method, from the measured ratios."""
    (Path(__file__).parent / "settings_tables" / "costs.txt").write_text(cost_table())


def write_laws() -> None:
    """Write what `docs/design.md` includes: the laws that every method is checked for."""
    lines = [f"- `{name}`: {sentence}" for name, sentence in LAWS.items()]
    (Path(__file__).parent / "settings_tables" / "laws.txt").write_text("\n".join(lines) + "\n")


def hide_source_links(
    app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Hide the link to the source of generated pages, which are not in the repository."""
    if pagename.startswith(("methods/", "results/", "_modules/")):
        context["theme_top_of_page_buttons"] = []


def shorten_neighbors(
    app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Show the names of the next methods, because two titles of papers do not fit side by side."""
    if pagename.startswith("methods/"):
        for side in filter(None, (context.get("prev"), context.get("next"))):
            side["title"] = side["title"].partition(": ")[0]


def setup(app: Any) -> None:
    """Register with Sphinx."""
    app.connect("html-page-context", hide_source_links)
    app.connect("html-page-context", shorten_neighbors)


write_method_pages(Path(__file__).parent / "methods")
write_settings_tables()
write_rules()
write_costs()
write_laws()
write_pages(Path(__file__).parent / "results")
# last, since the drawings above have a style of their own
prepare_kernels(ROOT)
