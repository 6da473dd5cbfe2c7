"""Names, aliases and plugins."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mtlkit
from mtlkit.config.registry import Registry, methods
from mtlkit.errors import SpecError

PLUGIN = Path(__file__).parents[1] / "plugin"


def test_an_entry_point_with_the_name_of_a_built_in_is_refused_aloud(monkeypatch):
    from mtlkit.config import registry

    class Entry:
        name, value = "binary", "package:Mine"

        def load(self):
            return lambda name: None

    fresh = registry.Registry("kind of task", "mtlkit.tasks", "mtlkit.tasks")
    fresh.register("binary")(print)
    monkeypatch.setattr(registry, "entry_points", lambda group: [Entry()])
    with pytest.warns(RuntimeWarning, match=r"'binary'.* is already registered \(builtins.print\)"):
        assert fresh.get("binary") is print


def test_the_baselines_of_the_paper_are_registered():
    expected = {
        "sum",
        "mean",
        "scale",
        "pcgrad",
        "graddrop",
        "mgda",
        "gradnorm",
        "imtl_g",
        "normalize",
        "constant",
    }
    assert expected <= set(mtlkit.list_methods())
    assert mtlkit.list_methods() == sorted(mtlkit.list_methods())


@pytest.mark.parametrize(
    ("alias", "meaning"),
    [
        ("rotograd", "rotate+scale"),
        ("rotate_only", "rotate+sum"),
        ("scale_only", "scale"),
        ("vanilla", "sum"),
    ],
)
def test_aliases_stand_for_their_parts(alias, meaning):
    assert str(mtlkit.create_method(alias, 2, feature_dim=4)) == meaning


def test_options_of_an_alias_go_to_the_parts_that_take_them():
    method = mtlkit.create_method("rotograd(size=2, burn_in=20)", 2, feature_dim=4)
    assert method.rotations.shape == (2, 2, 2)
    assert method.merging.burn_in == 20
    with pytest.raises(SpecError, match="unknown option of rotograd 'sice'; did you mean 'size'"):
        mtlkit.create_method("rotograd(sice=2)", 2, feature_dim=4)


def test_overrides_replace_options_of_the_string():
    method = mtlkit.create_method("gradnorm(alpha=0.5)", 2, alpha=2.0)
    assert str(method) == "gradnorm(alpha=2.0)"


def test_mapping_and_list_forms_mean_the_same_as_the_string():
    from_string = mtlkit.create_method("normalize(burn_in=3)+gradnorm(alpha=0.5)", 2)
    as_list = [{"name": "normalize", "burn_in": 3}, {"gradnorm": {"alpha": 0.5}}]
    assert str(mtlkit.create_method(as_list, 2)) == str(from_string)
    assert str(mtlkit.create_method({"name": "gradnorm", "alpha": 0.5}, 2)) == "gradnorm(alpha=0.5)"


def test_a_method_can_be_registered_in_one_line_and_is_used_by_its_name():
    with methods.temporary():

        @mtlkit.register_method("first_only_for_test")
        class FirstOnly(mtlkit.GradientAggregator):
            """Follow the first task."""

            def weigh(self, gram, state):
                weights = torch.zeros_like(gram[0])
                weights[0] = 1
                return weights, state

        assert "first_only_for_test" in mtlkit.list_methods()
        method = mtlkit.create_method("normalize+first_only_for_test", 3)
        assert str(method) == "normalize+first_only_for_test"
        rows = torch.randn(3, 5)
        assert torch.equal(method.combine(rows), rows[0])
        with pytest.raises(SpecError, match="already registered"):
            mtlkit.register_method("pcgrad")(FirstOnly)
        with pytest.raises(SpecError, match="already registered"):
            mtlkit.register_method("rotograd")(FirstOnly)
    assert "first_only_for_test" not in mtlkit.list_methods()


def test_a_factory_that_returns_something_else_is_refused():
    with methods.temporary():
        methods.register("no_method_for_test")(lambda tasks: torch.nn.ReLU())
        with pytest.raises(SpecError, match="must be a GradientAggregator"):
            mtlkit.create_method("no_method_for_test", 2)


def test_a_name_must_be_a_word():
    with pytest.raises(SpecError, match="name must be"):
        mtlkit.register_method("my method")


def test_unknown_architectures_are_answered_with_the_nearest():
    registry: Registry = Registry("architecture", "no.such.group", "mtlkit.architectures")
    registry.register("hard_sharing")(lambda tasks: None)
    with pytest.raises(
        SpecError, match="unknown architecture 'hard_sharin'; did you mean 'hard_sharing'"
    ):
        registry.get("hard_sharin")


def test_what_is_registered_temporarily_is_forgotten_after_an_error_too():
    before = methods.names(), methods.aliases()
    with pytest.raises(ZeroDivisionError), methods.temporary():
        methods.register("pcgrad", replace=True)(print)
        methods.alias("plain", "sum")
        assert methods.get("pcgrad") is print
        raise ZeroDivisionError
    assert (methods.names(), methods.aliases()) == before
    assert methods.get("pcgrad") is not print


@pytest.fixture(scope="module")
def installed_plugin(tmp_path_factory):
    """The sample plugin, really installed, into a folder of its own."""
    source = tmp_path_factory.mktemp("source") / "plugin"
    shutil.copytree(PLUGIN, source)
    target = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(target),
        str(source),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return target


def run_with(path: Path, code: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(mtlkit.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), root])}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )


def test_an_installed_package_adds_its_method_and_architecture(installed_plugin):
    code = (
        "import mtlkit, torch\n"
        "assert 'last_task_only' in mtlkit.list_methods()\n"
        "assert 'sample_net' in mtlkit.list_architectures()\n"
        "m = mtlkit.create_method('normalize+last_task_only(factor=2.0)', 2)\n"
        "print(m, m.combine(torch.eye(2)).tolist())\n"
    )
    result = run_with(installed_plugin, code)
    assert result.stdout.strip() == "normalize+last_task_only(factor=2.0) [0.0, 2.0]"


def test_the_method_of_an_installed_package_passes_the_laws(installed_plugin):
    code = (
        "from mtlkit.testing import check_method\n"
        "check_method('last_task_only', examples=4)\n"
        "check_method('normalize+last_task_only', examples=4, tasks=2)\n"
    )
    run_with(installed_plugin, code)


def test_an_installed_package_adds_its_kind_of_task(installed_plugin):
    code = (
        "import torch\n"
        "from mtlkit.tasks import create_task, list_tasks\n"
        "task = create_task('sample_task(factor=3)', 'mine')\n"
        "loss, count = task.measure(torch.zeros(2, 1), torch.ones(2, 1))\n"
        "print(task.kind, 'sample_task' in list_tasks(), float(loss), count)\n"
    )
    assert run_with(installed_plugin, code).stdout.strip() == "sample_task True 3.0 2"


def test_a_broken_plugin_warns_with_its_name_and_breaks_nothing_else(installed_plugin):
    result = run_with(installed_plugin, "import mtlkit\nprint('pcgrad' in mtlkit.list_methods())")
    assert result.stdout.strip() == "True"
    assert "broken_method" in result.stderr
    assert "this plugin is broken on purpose" in result.stderr
    quiet = run_with(installed_plugin, "import mtlkit")
    assert "broken" not in quiet.stderr


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("CAGrad(c=0.3)", "cagrad(c=0.3)"),
        ("UW+Nash-MTL(max_norm=2)", "uw+nash_mtl(max_norm=2)"),
        ("ConFIG", "config"),
        ("Nash-MTL", "nash_mtl"),
        ("NashMTL", "nash_mtl"),
        ("MGDA-UB", "mgda"),
        ("IMTL-G", "imtl_g"),
        ("IMTLG", "imtl_g"),
        ("Aligned-MTL", "aligned_mtl"),
        ("RotoGrad", "rotate+scale"),
        ("EW", "sum"),
        ([{"name": "Nash-MTL", "max_norm": 2}], "nash_mtl(max_norm=2)"),
    ],
)
def test_methods_are_found_by_the_spelling_of_their_papers(given, canonical):
    assert str(mtlkit.create_method(given, 2, feature_dim=4)) == canonical


def test_networks_data_sets_and_tasks_are_found_by_other_spellings_too():
    from mtlkit.tasks import create_task

    model = mtlkit.create_architecture("Hard-Sharing(backbone=mlp(4, inputs=3))", 2, method="PCGrad")
    assert model.spec.startswith("hard_sharing(")
    assert str(model.method) == "pcgrad"
    assert mtlkit.load_dataset("Multi-Digits").spec == "multidigits"
    assert create_task("Binary", "x").kind == "binary"
    assert mtlkit.config.registry.architectures.canonical("HPS") == "hard_sharing"


def test_every_other_spelling_leads_to_a_registered_name():
    for registry in (methods, mtlkit.config.registry.architectures):
        for spelling, name in registry.spellings.items():
            assert name in registry.names(), spelling
            assert registry.canonical(spelling) == name


def test_two_names_that_differ_in_spelling_alone_are_not_confused():
    registry = Registry("thing", "mtlkit.no_such_group", "mtlkit.config.registry")
    registry.register("ab")(lambda: "ab")
    registry.register("a_b")(lambda: "a_b")
    assert registry.get("ab")() == "ab"
    assert registry.get("a_b")() == "a_b"
    with pytest.raises(SpecError, match="unknown thing 'A-B'"):
        registry.get("A-B")


@pytest.mark.parametrize(
    "text", ["a-", "-a", "a(x=1)-b", "a-b.c", "a-1.5", "a--b", "x(column=hours-worked)"]
)
def test_a_hyphen_is_part_of_a_name_and_nothing_else(text):
    from mtlkit.config.spec import parse_spec

    with pytest.raises(SpecError):
        parse_spec(text)
