"""Own code without packaging, in this process and in others."""

import json
import sys
import textwrap

import pytest

import mtlkit
from mtlkit.cli import main
from mtlkit.config.plugins import load_plugin, split_location
from mtlkit.errors import ConfigError
from mtlkit.training.config import TrainConfig

CARS = '''
"""A data set and a method of somebody's own."""

import torch

import mtlkit
from mtlkit.data import DataSet, TensorSplit


class Cars(DataSet):
    summary = "Two values of a car."
    default_architecture = "hard_sharing(backbone=mlp(8, inputs=4))"
    input_shape = (4,)
    tasks = (mtlkit.Task.regression("price"), mtlkit.Task.binary("fast"))

    def __init__(self, data_dir=None, seed=0, *, size: int = 32):
        super().__init__(data_dir, seed)
        self.size = size

    def make_split(self, split):
        generator = torch.Generator().manual_seed(self.seed + len(split))
        x = torch.randn(self.size, 4, generator=generator)
        return TensorSplit(x, {"price": x[:, :1], "fast": (x[:, 1:2] > 0).float()})


@mtlkit.register_method("NAME_sum")
class MySum(mtlkit.GradientAggregator):
    """Twice the sum."""

    def weigh(self, gram, state):
        return torch.full((len(gram),), 2.0, dtype=gram.dtype), state
'''


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Write a plugin; afterward all is as before."""
    from mtlkit.config.registry import methods
    from mtlkit.data.base import datasets

    modules, path = set(sys.modules), list(sys.path)

    def write(name: str, text: str = CARS):
        file = tmp_path / f"{name}.py"
        file.write_text(textwrap.dedent(text).replace("NAME", name))
        return file

    monkeypatch.chdir(tmp_path)
    with methods.temporary(), datasets.temporary():
        yield write
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    sys.path[:] = path


def call(*arguments) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(map(str, arguments)))
    return stop.value.code


def test_a_location_is_told_from_a_config_string():
    assert split_location("my.py:Cars") == ("my.py", "Cars")
    assert split_location("a b/my.py:Cars(size=3)") == ("a b/my.py", "Cars(size=3)")
    for spec in ("multimnist", "table(file='a.py:b')", {"name": "x"}, None):
        assert split_location(spec) == (None, spec)


def test_a_file_is_loaded_once_and_its_data_set_known_by_the_class(plugin):
    file = plugin("cars_once")
    module = load_plugin(str(file))
    assert load_plugin("cars_once.py") is module
    assert "cars_once_sum" in mtlkit.list_methods()
    assert mtlkit.load_dataset("Cars(size=5)").size == 5
    assert load_plugin("json") is json  # a module by its name


def test_python_takes_a_file_and_a_class_as_a_data_set(plugin):
    plugin("cars_python")
    made = mtlkit.load_dataset("cars_python.py:Cars(size=6)")
    assert (len(made.train), made.spec) == (6, "Cars(size=6)")


def test_settings_write_down_what_other_processes_need(plugin, tmp_path):
    file = plugin("cars_settings")
    config = TrainConfig.make({"data": "cars_settings.py:Cars(size=7)"})
    assert (config.data, config.plugins) == ("Cars(size=7)", [str(file)])
    both = TrainConfig.make({"data": "cars_settings.py:Cars", "plugins": "cars_settings.py, json"})
    assert both.plugins == [str(file), "json"]
    assert TrainConfig.make({"data": "Cars", "plugins": [str(file)]}).plugins == [str(file)]


LAUNCHERS = {
    "local": "launcher: local\n",
    "submitit": "launcher: submitit\nlauncher_options: {cluster: local}\n",
}


@pytest.mark.parametrize("launcher", ["local", pytest.param("submitit", marks=pytest.mark.slow)])
def test_two_processes_compare_on_a_data_set_and_a_method_of_a_file(plugin, launcher, tmp_path, capsys):
    plugin("cars_compare")
    (tmp_path / "compare.yaml").write_text(LAUNCHERS[launcher])
    code = call(
        "compare", "-c", "compare.yaml", "--data", "cars_compare.py:Cars", "--methods", "sum,cars_compare_sum",
        "--epochs", 1, "--batch-size", 16, "--seeds", 1, "--no-single-task", "--timing", 0, "--jobs", 2, "-o", "out",
    )  # fmt: skip
    shown = capsys.readouterr()
    assert code == 0, shown.err
    lines = [json.loads(line) for line in (tmp_path / "out/results.jsonl").read_text().splitlines()]
    assert {line["label"]: line["status"] for line in lines} == {
        "sum": "done",
        "cars_compare_sum": "done",
    }


def test_a_plugin_is_listed_and_described(plugin, capsys):
    plugin("cars_listed")
    assert call("methods", "cars_listed_sum", "--plugin", "cars_listed.py") == 0
    assert "Twice the sum" in capsys.readouterr().out
    assert call("data", "cars_listed.py:Cars") == 0
    assert "price: regression" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = x / 0\n", "broken.py, line 2: ZeroDivisionError: division by zero"),
        ("def f(:\n    pass\n", "broken.py, line 1: SyntaxError: invalid syntax"),
        ("import no_such_module_here\n", "broken.py, line 1: ModuleNotFoundError: No module named"),
        ("import sys\n\nsys.exit('bye')\n", "broken.py, line 3: SystemExit: bye"),
        (
            "import mtlkit\n@mtlkit.register_method('sum')\nclass Mine: pass\n",
            "broken.py, line 2: SpecError: method 'sum' is already registered",
        ),
    ],
)
def test_the_error_of_a_plugin_is_one_sentence_with_file_and_line(plugin, text, message, capsys):
    plugin("broken", text)
    assert call("train", "--data", "multidigits", "--plugin", "broken.py") == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
    assert len(shown.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("plugin_name", "message"),
    [
        ("absent.py", "no such file"),
        ("no_such_module_here", "No module named 'no_such_module_here'"),
        ("json.py", "another module is named 'json'"),
        ("my-data.py", "must be a Python identifier"),
    ],
)
def test_a_plugin_that_cannot_be_found_says_why(plugin, plugin_name, message):
    if plugin_name in ("json.py", "my-data.py"):
        plugin(plugin_name[:-3], "")
    with pytest.raises(ConfigError, match=message):
        load_plugin(plugin_name)
