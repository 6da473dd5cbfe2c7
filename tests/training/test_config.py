"""Settings: one description gives the checks, the options, the schema and the tables."""

import json

import pytest
import yaml
from pydantic import ValidationError

from mtlkit.cli.schema import json_schema, settings_of
from mtlkit.config.settings import display, setting
from mtlkit.errors import ConfigError
from mtlkit.experiments.compare_config import CompareConfig
from mtlkit.experiments.entries import MethodSettings
from mtlkit.training.config import TrainConfig, TrainingSettings


def make(**settings) -> TrainConfig:
    return TrainConfig.make({"data": "small", **settings}, "run.yaml")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batchsize": 3}, "run.yaml: unknown key 'batchsize'; did you mean 'batch_size'"),
        ({3: 3}, "run.yaml: unknown key 3"),
        ({"data": None}, "run.yaml: the key 'data' is missing; name a data set"),
        ({"lr": "fast"}, "run.yaml: 'lr' must be a number, not 'fast'"),
        ({"lr": True}, "run.yaml: 'lr' must be a number, not True"),
        ({"lr": float("nan")}, "run.yaml: 'lr' must be finite, not nan"),
        ({"lr": -1}, "run.yaml: 'lr' must be 0 or more, not -1"),
        ({"lr": 10**400}, "is too large"),
        ({"epochs": 3.5}, "run.yaml: 'epochs' must be an integer, not 3.5"),
        ({"epochs": "3.5"}, "run.yaml: 'epochs' must be an integer, not 3.5"),
        ({"batch_size": None}, "run.yaml: 'batch_size' must be an integer, not None"),
        ({"batch_size": 0}, "run.yaml: 'batch_size' must be 1 or more, not 0"),
        ({"max_grad_norm": 0}, "run.yaml: 'max_grad_norm' must be above 0, not 0"),
        ({"rotation_decay": 1.5}, "'rotation_decay' must be above 0 and at most 1, not 1.5"),
        ({"rotation_decay": "slow"}, "'rotation_decay' must be a number or 'auto', not 'slow'"),
        ({"seed": 2**32}, "run.yaml: 'seed' must be 0 or more and below 4294967296"),
        ({"mixed_precision": "f16"}, "'mixed_precision' must be one of 'no', 'bf16', 'fp16', not 'f16'"),
        ({"test": "yes"}, "run.yaml: 'test' must be true or false, not 'yes'"),
        ({"method": "sum("}, "run.yaml, 'method': cannot read spec 'sum('"),
        ({"architecture": 3}, "run.yaml, 'architecture': cannot read a spec from int"),
        ({"learning_rate": 1e-3}, "run.yaml: unknown key 'learning_rate'; did you mean 'lr'?"),
        ({"accumulate": 2}, "did you mean 'gradient_accumulation_steps'?"),
        ({"log_with": [3]}, "run.yaml: 'log_with' must be a list of names, not 3"),
    ],
)
def test_a_wrong_setting_is_named_with_what_was_given_and_what_is_accepted(settings, message):
    with pytest.raises(ConfigError) as error:
        make(**{"data": "small", **settings}) if 3 not in settings else TrainConfig.make(
            settings, "run.yaml"
        )
    assert message in str(error.value)


def test_values_are_read_as_yaml_and_the_command_line_write_them():
    config = make(
        lr="1e-3", epochs="3", mixed_precision=False, method_lr=1, log_with="tensorboard, wandb"
    )
    assert (config.lr, config.epochs, config.mixed_precision) == (0.001, 3, "no")
    assert isinstance(config.method_lr, float)
    assert config.log_with == ["tensorboard", "wandb"]
    assert make(method={"name": "cagrad", "c": 0.3}).method == "cagrad(c=0.3)"
    assert make(rotation_decay="auto").rotation_decay == "auto"
    assert make(rotation_decay="0.5").rotation_decay == 0.5


def test_settings_cannot_be_changed_but_copied_and_written():
    config = make(seed=3)
    with pytest.raises(ValidationError):
        config.seed = 4
    again = TrainConfig.make(yaml.safe_load(config.to_yaml()), "again")
    assert again == config
    assert config.model_copy(update={"seed": 4}).folder.name.endswith("-4")


def test_a_comparison_shares_every_setting_of_training_but_those_it_decides():
    own = set(TrainConfig.model_fields) - set(CompareConfig.model_fields)
    assert own == {"method", "seed", "output", "test", "save_total_limit"}
    config = CompareConfig.make({"data": "x", "methods": "sum", "channels_last": True, "workers": 2})
    assert set(config.train) == set(TrainingSettings.model_fields)
    assert (config.train["channels_last"], config.train["workers"]) == (True, 2)


def test_what_a_method_may_set_for_itself_is_marked_at_the_setting():
    marked = {name for name, f in TrainingSettings.model_fields.items() if display(f).per_method}
    assert set(MethodSettings.model_fields) == {"method", "label", "extra_capacity", *marked}
    assert {"lr", "method_lr", "optimizer", "epochs", "batch_size"} <= marked
    assert "workers" not in marked
    settings = {"data": "x", "methods": [{"method": "sum", "label": "a", "workers": 3}]}
    with pytest.raises(ConfigError, match="unknown key 'workers'"):
        CompareConfig.make(settings)
    settings["methods"] = [{"method": "sum", "label": "a", "lr": "x"}]
    with pytest.raises(ConfigError, match=r"the settings, method .*: 'lr' must be a number, not 'x'"):
        CompareConfig.make(settings)


def test_a_subclass_adds_a_setting_that_is_checked_written_and_listed():
    class Search(CompareConfig):
        trials: int = setting(10, "Trials per method.", ge=1)

    config = Search.make({"data": "x", "methods": ["sum"], "trials": "4", "small": {"trials": 2}})
    assert config.trials == 4
    assert [entry.label for entry in config.entries] == ["sum"]
    assert (
        Search.make({"data": "x", "methods": "sum", "small": {"trials": 2}}, budget="small").trials == 2
    )
    with pytest.raises(ConfigError, match="'trials' must be 1 or more, not 0"):
        Search.make({"data": "x", "methods": "sum", "trials": 0})
    with pytest.raises(ConfigError, match="small: unknown key 'trails'; did you mean 'trials'"):
        Search.make({"data": "x", "methods": "sum", "small": {"trails": 0}})
    assert Search.model_json_schema()["properties"]["trials"]["minimum"] == 1


def test_seeds_are_a_number_or_a_list_also_on_the_command_line():
    def seeds(given):
        return CompareConfig.make({"data": "x", "methods": "sum", "seeds": given}).seeds

    assert seeds(3) == seeds("3") == seeds([0, 1, 2]) == (0, 1, 2)
    assert seeds("4,7") == seeds([4, 7]) == (4, 7)
    for wrong in ("x", "1,x", "", 0, -1, True, [], ["a"], [-1], None):
        with pytest.raises(ConfigError, match="'seeds' must be a number from 1"):
            seeds(wrong)


@pytest.mark.parametrize("command", ["train", "compare"])
def test_the_schema_for_editors_describes_every_key(command):
    schema = json_schema(command)
    assert json.loads(json.dumps(schema)) == schema
    assert set(schema["properties"]) == set(settings_of(command).model_fields)
    assert schema["additionalProperties"] is False
    assert "data" in schema["required"]
    assert schema["properties"]["batch_size"] == {
        "default": 64,
        "description": "Samples per batch, over all processes.",
        "minimum": 1,
        "type": "integer",
    }
    assert all(entry.get("description") for entry in schema["properties"].values())


def test_the_schema_knows_what_a_method_of_a_comparison_may_say():
    methods = json_schema("compare")["properties"]["methods"]
    mapping = methods["items"]["anyOf"][1]
    assert {"method", "label", "extra_capacity", "lr"} <= set(mapping["properties"])
    assert mapping["additionalProperties"] is False


def test_every_setting_says_what_it_means():
    for model in (TrainConfig, CompareConfig, MethodSettings):
        for name, field in model.model_fields.items():
            assert field.description, name
            assert field.description.endswith("."), name
