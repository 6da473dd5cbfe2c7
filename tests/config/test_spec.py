"""The grammar of config strings."""

from __future__ import annotations

import math
import string

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mtlkit.config.spec import Part, format_spec, parse_spec
from mtlkit.errors import MtlkitError, SpecError

words = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(
    lambda w: not __import__("keyword").iskeyword(w) and w not in ("inf", "nan")
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False)
    | words
    | st.text(string.printable, max_size=12)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(words, inner, max_size=3)
    ),
    max_leaves=6,
)
parts = st.builds(Part, words, st.dictionaries(words, values, max_size=3))


@given(st.lists(parts, min_size=1, max_size=4))
@settings(max_examples=300)
def test_what_is_written_is_read_back(items):
    assert parse_spec(format_spec(items)) == items


def test_numbers_of_numpy_are_written_as_numbers():
    assert (
        format_spec([Part("rlw", {"seed": np.int64(3), "scale": np.float64(0.5)})])
        == "rlw(seed=3, scale=0.5)"
    )


@given(
    st.lists(st.builds(Part, words, st.dictionaries(words, scalars, max_size=3)), min_size=1, max_size=3)
)
def test_yaml_nodes_mean_the_same(items):
    nodes = [{"name": part.name, **part.options} for part in items if "name" not in part.options]
    if nodes:
        again = parse_spec(yaml.safe_load(yaml.safe_dump(nodes)))
        assert [part.name for part in again] == [node["name"] for node in nodes]


@given(st.text(max_size=60) | st.text("abc()+=,.'[]{}01 :-*", max_size=40))
@settings(max_examples=500)
def test_any_text_is_read_or_refused_with_our_error(text):
    try:
        assert all(isinstance(part, Part) for part in parse_spec(text))
    except MtlkitError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pcgrad", [Part("pcgrad")]),
        (" pcgrad ( ) ", [Part("pcgrad")]),
        ("pcgrad(wrt=parameters)", [Part("pcgrad", {"wrt": "parameters"})]),
        (
            "a(x=-1.5e3)+b+c(y=[1, two])",
            [Part("a", {"x": -1500.0}), Part("b"), Part("c", {"y": [1, "two"]})],
        ),
        ("net(backbone=timm.resnet18)", [Part("net", {"backbone": "timm.resnet18"})]),
        ("cr(inner=cagrad(c=0.4))", [Part("cr", {"inner": "cagrad(c=0.4)"})]),
        ("cr(inner=a+b(c=1))", [Part("cr", {"inner": "a+b(c=1)"})]),
        ("a(x=-inf)", [Part("a", {"x": -math.inf})]),
        ("a(w={seg: 1, depth: 0.5})", [Part("a", {"w": {"seg": 1, "depth": 0.5}})]),
    ],
)
def test_the_grammar_by_example(text, expected):
    assert parse_spec(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "a b",
        "a*b",
        "a+(b+c)",
        "a(1)",
        "a(**b)",
        "a(x=1, x=2)",
        "a(x=lambda: 1)",
        "a(x=b[0])",
        "a(x=1 if y else 2)",
        "a(x=f'{1}')",
        "a(x=b'1')",
        "[a]",
        "'a'",
        "3",
        "a().b",
        "a(x=(y:=1))",
        "a(x={[1]: 2})",
        "a(x={**b})",
        "(" * 500 + "a" + ")" * 500,
        "a" * 20_000,
        "a\x00",
    ],
)
def test_what_is_no_spec_is_refused(text):
    with pytest.raises(SpecError):
        parse_spec(text)


@pytest.mark.parametrize(
    "given",
    ["file=/tmp/x.csv, targets=[a]", "targets={gross income: binary}", "targets={pay €: binary}"],
)
def test_a_path_or_an_odd_name_without_quotes_is_told_to_have_them(given):
    with pytest.raises(SpecError, match=r"put paths.*and names of several words in quotes"):
        parse_spec(f"table({given})")


def test_nothing_is_evaluated(tmp_path):
    target = tmp_path / "touched"
    for text in (f"__import__('os').system('touch {target}')", f"a(x=open({str(target)!r}, mode='w'))"):
        try:
            parse_spec(text)
        except SpecError:
            pass
        assert not target.exists()


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"a": 1},
        {"a": {}, "b": {}},
        {"name": 3},
        {"name": "a b"},
        {"name": "a", 3: 4},
        [],
        3,
        None,
        b"a",
        [[]],
    ],
)
def test_mappings_that_are_no_part_are_refused(spec):
    with pytest.raises(SpecError):
        parse_spec(spec)
