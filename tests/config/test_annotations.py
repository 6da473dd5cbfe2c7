"""Types and ranges of options: one declaration, and what is read off it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mtlkit
from mtlkit.config.annotations import Ge, Gt, Le, Lt, describe, explain, fits, json_schema
from mtlkit.config.registry import check_options, methods, option_defaults, option_types
from mtlkit.errors import SpecError

FRACTION = Annotated[float, Ge(0), Lt(1)]


@given(st.floats() | st.integers())
def test_a_number_fits_a_range_if_it_is_between_the_bounds(value):
    assert fits(value, FRACTION) == (0 <= value < 1)
    assert fits(value, Annotated[float, Gt(0), Le(1)]) == (0 < value <= 1)


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (float, [0, 1.5, -3], [math.nan, math.inf, True, "1", None]),
        (int, [0, -7, np.int64(3)], [1.0, False, np.bool_(True), 2**63, "1"]),
        (bool, [True], [1, "yes"]),
        (str, ["a"], [1, None]),
        (int | None, [None, 1], [1.5, "a"]),
        (Annotated[int, Ge(1)] | None, [None, 1], [0, 1.5]),
        (Literal[0] | Annotated[float, Ge(0.05)], [0, 0.0, 0.05], [0.01, -1, math.inf]),
        (Annotated[float, Gt(0), Le(math.inf)], [1, math.inf], [0, math.nan, -math.inf]),
        (Literal["a", "b"], ["a"], ["c", None]),
        (Sequence[float], [[1.0], (2,)], ["text", 3, [math.nan]]),
        (Mapping[str, float], [{"a": 1}], [[1], {"a": math.inf}]),
        (Any, ["a", 1, object()], [math.inf, [math.nan]]),
    ],
)
def test_values_of_another_type_or_outside_the_range_do_not_fit(annotation, good, bad):
    assert [value for value in good if not fits(value, annotation)] == []
    assert [value for value in bad if fits(value, annotation)] == []


def test_words_and_schema_name_type_and_range():
    assert describe(FRACTION) == "a number, 0 or more and below 1"
    assert describe(Annotated[float, Gt(0), Le(math.inf)]) == "a number, above 0"
    assert describe(Annotated[int, Ge(1)] | None) == "an integer, 1 or more or None"
    assert explain(2.0, FRACTION) == "0 or more and below 1"
    assert explain(True, FRACTION) == "a number"
    assert explain(0, Annotated[int, Ge(1)]) == "1 or more"
    assert json_schema(FRACTION) == {"type": "number", "minimum": 0, "exclusiveMaximum": 1}
    assert json_schema(Literal["a"] | None) == {"anyOf": [{"enum": ["a"]}, {"type": "null"}]}
    assert json_schema(Sequence[float]) == {"type": "array", "items": {"type": "number"}}


def test_ranges_of_annotated_types_are_read_too():
    annotated_types = pytest.importorskip("annotated_types", reason="it comes with pydantic")
    annotation = Annotated[float, annotated_types.Ge(0)]
    assert (fits(0, annotation), fits(-1, annotation)) == (True, False)
    assert describe(annotation) == "a number, 0 or more"


class Declared(mtlkit.GradientAggregator):
    """Take options of several kinds."""

    def __init__(
        self,
        tasks,
        *,
        c: Annotated[float, Ge(0)] = 0.4,
        limit: float = math.inf,
        loose=1.0,
        **common,
    ):
        super().__init__(tasks, **common)
        self.c, self.limit, self.loose = c, limit, loose

    def weigh(self, gram, state):
        return gram[0] * self.c, state


@pytest.mark.parametrize(
    "option", [{"c": -1}, {"c": math.nan}, {"c": "a"}, {"loose": math.nan}, {"wrt": "heads"}]
)
def test_a_class_refuses_the_options_that_its_config_string_refuses(option):
    (key,) = option
    with pytest.raises(SpecError, match=f"{key} of Declared must be"):
        Declared(2, **option)
    with methods.temporary():
        mtlkit.register_method("declared_for_test")(Declared)
        try:
            with pytest.raises(SpecError, match=f"{key} of declared_for_test must be"):
                mtlkit.create_method("declared_for_test", 2, **option)
        finally:
            del Declared.name


def test_where_the_default_is_infinite_an_infinite_value_may_be_given():
    assert Declared(2, limit=math.inf).limit == math.inf
    with pytest.raises(SpecError, match="limit of Declared must be a number"):
        Declared(2, limit="high")


@pytest.mark.parametrize("name", sorted(set(methods.names()) - set(methods.aliases())))
def test_the_defaults_and_the_searched_values_of_a_method_are_in_its_ranges(name):
    factory = methods.get(name)
    defaults, annotations = option_defaults(factory), option_types(factory)
    assert [key for key in defaults if key not in annotations] == []
    assert [k for k, default in defaults.items() if not fits(default, annotations[k])] == []
    for key, space in factory.search_space.items():
        for value in space.grid(5) if key in defaults and hasattr(space, "grid") else ():
            check_options(factory, {key: value})
