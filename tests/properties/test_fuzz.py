"""Whatever is written into a config string or a file: an error of mtlkit, or something that works."""

import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mtlkit
from mtlkit.config.spec import format_spec, parse_spec
from mtlkit.config.yaml_files import parse_yaml
from mtlkit.errors import MtlkitError
from mtlkit.training.config import TrainConfig

WORDS = st.sampled_from(
    [
        "pcgrad", "rotate", "scale", "sum", "rotograd", "gradnorm", "mgda", "nonsense", "__import__",
        "os.system", "eval", "exec", "open", "lambda", "None", "True", "inf", "nan", "burn_in", "seed",
        "size", "wrt", "features", "alpha", "(", ")", "=", "+", ",", "[", "]", "{", "}", ":", "'", '"',
        ".", "*", "**", "-", "1", "0.5", "1e999", "9" * 50, "\n", "\x00", " ", "#", "\\", "é", "for x in",
        "__class__", "().__class__.__bases__", "`", "@", ";", "!!python/object/apply:os.system", "&a", "*a",
    ]
)  # fmt: skip
STRINGS = st.one_of(
    st.text(max_size=60),
    st.lists(WORDS, max_size=14).map("".join),
    st.lists(WORDS, max_size=10).map(" ".join),
    st.builds("{}({}={})".format, WORDS, WORDS, WORDS),
    st.integers(0, 300).map(lambda n: "(" * n + "pcgrad" + ")" * n),
    st.integers(0, 300).map(lambda n: "sum(a=" + "[" * n + "]" * n + ")"),
)
KEYS = st.one_of(
    st.sampled_from(
        ["data", "method", "lr", "epochs", "batch_size", "mixed_precision", "test", "seed", "output"]
    ),
    WORDS,
    st.text(max_size=12),
)
VALUES = st.one_of(
    WORDS,
    STRINGS,
    st.sampled_from(
        ["1e-3", "[1, 2", "{a: 1}", "- x", "|", "~", "2001-01-01", "0x1F", "1:30", "!!binary x"]
    ),
    st.integers().map(str),
    st.floats().map(str),
)
FILES = st.one_of(
    STRINGS,
    st.lists(st.builds("{}: {}".format, KEYS, VALUES), max_size=6).map("\n".join),
    st.lists(st.builds("{}: {}".format, KEYS, VALUES), max_size=6).map(
        lambda lines: "\n".join(["data: small", *lines])
    ),
)


@pytest.fixture(autouse=True)
def _nothing_runs(monkeypatch):
    """An evaluation of any kind would go through one of these."""
    import builtins
    import os
    import subprocess

    def refuse(*_, **__):
        raise AssertionError("code was run")

    def guard(function):
        def called(*args, **kwargs):
            if sys._getframe(1).f_globals.get("__name__", "").startswith("mtlkit"):
                refuse()
            return function(*args, **kwargs)

        return called

    for name in ("eval", "exec"):  # typing evaluates annotations with it
        monkeypatch.setattr(builtins, name, guard(getattr(builtins, name)))
    for module, name in ((os, "system"), (subprocess, "Popen")):
        monkeypatch.setattr(module, name, refuse)


def try_string(text: str) -> None:
    try:
        parts = parse_spec(text)
        assert parse_spec(format_spec(parts)) == parts or "nan" in text
        method = mtlkit.create_method(text, 2, feature_dim=4)
        assert str(mtlkit.create_method(str(method), 2, feature_dim=4)) == str(method)
    except MtlkitError as error:
        assert str(error)


def try_file(text: str) -> None:
    try:
        config = TrainConfig.make(parse_yaml(text, "file.yaml"), "file.yaml")
        assert TrainConfig.make(parse_yaml(config.to_yaml(), "again"), "again") == config
    except MtlkitError as error:
        assert str(error)


FEW = settings(max_examples=400, suppress_health_check=list(HealthCheck), deadline=None)
MANY_STRINGS = settings(max_examples=10_000, suppress_health_check=list(HealthCheck), deadline=None)
MANY_FILES = settings(max_examples=1_000, suppress_health_check=list(HealthCheck), deadline=None)


@FEW
@given(STRINGS)
def test_a_string_gives_a_method_or_an_error_of_mtlkit(text):
    try_string(text)


@settings(FEW, max_examples=200)
@given(FILES)
def test_a_file_gives_settings_or_an_error_of_mtlkit(text):
    try_file(text)


@pytest.mark.slow
@MANY_STRINGS
@given(STRINGS)
def test_ten_thousand_strings_give_methods_or_errors_of_mtlkit(text):
    try_string(text)


@pytest.mark.slow
@MANY_FILES
@given(FILES)
def test_a_thousand_files_give_settings_or_errors_of_mtlkit(text):
    try_file(text)


def test_an_alias_that_stands_for_more_than_memory_is_refused():
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for one, two in zip("abcdefgh", "bcdefghi", strict=True):
        bomb += f"{two}: &{two} [*{one}, *{one}, *{one}, *{one}, *{one}, *{one}, *{one}, *{one}]\n"
    with pytest.raises(MtlkitError, match="alias"):
        parse_yaml(bomb, "bomb.yaml")


def test_tags_that_would_make_objects_are_refused(tmp_path):
    text = f"data: !!python/object/apply:os.mkdir ['{tmp_path / 'made'}']"
    with pytest.raises(MtlkitError, match="not a plain YAML file"):
        parse_yaml(text, "file.yaml")
    assert not (tmp_path / "made").exists()


def test_a_key_that_is_given_twice_is_an_error():
    with pytest.raises(MtlkitError, match="'lr' is given twice"):
        parse_yaml("lr: 1\ndata: x\nlr: 2", "file.yaml")
