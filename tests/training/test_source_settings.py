"""The keys ``sources``, ``mixing`` and ``batches`` of the settings."""

import pytest

from mtlkit.config.yaml_files import parse_yaml
from mtlkit.errors import ConfigError
from mtlkit.training.config import TrainConfig

SOURCES = {"mood": "table(file='a.csv', targets={x: binary})", "topic": {"name": "multidigits"}}


def test_the_keys_make_a_data_set_that_survives_a_yaml_file():
    config = TrainConfig.make({"sources": SOURCES, "mixing": "temperature(2)", "batches": "one"})
    assert config.data == (
        "sources(of={mood: 'table(file=a.csv, targets={x: binary})', topic: multidigits}, "
        "mixing='temperature(2)', batches=one)"
    )
    again = TrainConfig.make(parse_yaml(config.to_yaml(), "text"))
    assert again == config
    changed = TrainConfig.make({"data": config.data, "mixing": "uniform"})
    assert "mixing=uniform" in changed.data
    assert "batches=one" in changed.data


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"sources": SOURCES, "data": "cifar10"}, "exclude each other"),
        ({"data": "cifar10", "mixing": "uniform"}, "'mixing': only 'sources' can be mixed"),
        ({"batches": "one"}, "'batches': only 'sources' can be mixed"),
        ({"sources": "multidigits"}, "task: data set, not 'multidigits'"),
        ({"sources": {}}, "task: data set"),
        ({"sources": {"a": "table("}}, "cannot read spec"),
    ],
)
def test_keys_that_do_not_fit_are_refused_with_the_reason(settings, reason):
    with pytest.raises(ConfigError, match=reason):
        TrainConfig.make(settings)
