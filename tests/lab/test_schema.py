"""Records, JSON and JSON Schema are consistent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openapi_schema_validator import OAS31Validator

from minibroker.lab.schema import (
    FAULTS_MAX,
    SHOWN_MAX,
    Doc,
    InvalidJson,
    Length,
    Range,
    Variants,
    component,
    components_of,
    json_schema,
    parse,
    to_json,
)


class Inner(NamedTuple):
    """A nested record."""

    text: Annotated[str, Length(1, 5)]


class Outer(NamedTuple):
    """What is
    outside.
    """

    whole: Annotated[int, Range(0, 10), Doc("A small number.")]
    inner: Inner
    real: Annotated[float | None, Range(0.5, 2)] = None
    flag: bool | None = None
    names: Annotated[Mapping[str, str], Length(0, 2)] = {}


class Listed(NamedTuple):
    """A record with a list."""

    steps: Annotated[tuple[Inner, ...], Length(1, 2)] = ()


class Answer(NamedTuple):
    """Only ever written."""

    items: tuple[Inner, ...]
    state: Literal["on", "off"]


def document(cls: type) -> dict[str, Any]:
    schemas = {inner.__name__: component(inner) for inner in components_of(cls)}
    return {**json_schema(cls), "components": {"schemas": schemas}}


def faults(value: object) -> dict[str, str]:
    with pytest.raises(InvalidJson) as caught:
        parse(Outer, value)
    return {fault.path: fault.message for fault in caught.value.faults}


def test_complete_value_round_trips() -> None:
    value = {"whole": 3, "inner": {"text": "a"}, "real": 1, "flag": True, "names": {"a": "b"}}
    outer = parse(Outer, value)
    assert outer == Outer(3, Inner("a"), 1, True, {"a": "b"})
    assert to_json(outer) == value


def test_list_of_records_is_parsed() -> None:
    assert parse(Listed, {"steps": [{"text": "a"}, {"text": "b"}]}).steps == (
        Inner("a"),
        Inner("b"),
    )
    OAS31Validator(document(Listed)).validate({"steps": [{"text": "a"}]})


@pytest.mark.parametrize(
    ("steps", "path", "message"),
    [
        ({"text": "a"}, "steps", "must be a list, not an object"),
        ([{"text": "a"}, {"text": 5}], "steps.1.text", "must be a text, not the number 5"),
        ([], "steps", "must have 1 to 2 entries, not 0"),
        ([{"text": "a"}] * 3, "steps", "must have 1 to 2 entries, not 3"),
        ([5] * 1000, "steps.0", "must be an object, not the number 5"),
    ],
)
def test_list_that_does_not_match_is_rejected(steps: object, path: str, message: str) -> None:
    with pytest.raises(InvalidJson) as caught:
        parse(Listed, {"steps": steps})
    assert caught.value.faults[0] == (path, message)
    assert len(caught.value.faults) <= FAULTS_MAX


def test_missing_optional_fields_use_defaults() -> None:
    assert parse(Outer, {"whole": 1, "inner": {"text": "a"}, "flag": None}) == Outer(1, Inner("a"))


def test_every_fault_is_reported_with_its_path() -> None:
    assert faults({"wohle": 1, "inner": {"text": ""}, "real": 9, "names": {"k": 1}}) == {
        "wohle": "unknown field; did you mean 'whole'?",
        "whole": "is missing",
        "inner.text": "must have 1 to 5 characters, not 0",
        "real": "must be from 0.5 to 2, not 9",
        "names.k": "must be a text, not the number 1",
    }


@pytest.mark.parametrize(
    ("value", "path", "message"),
    [
        (None, "(body)", "must be an object, not null"),
        ([], "(body)", "must be an object, not a list"),
        ({"whole": True}, "whole", "must be a whole number, not true"),
        ({"whole": "3"}, "whole", "must be a whole number, not a text"),
        ({"whole": 2.5}, "whole", "must be a whole number, not the number 2.5"),
        ({"whole": float("nan")}, "whole", "must be a whole number, not the number nan"),
        ({"flag": 1}, "flag", "must be true or false, not the number 1"),
        ({"real": {}}, "real", "must be a number, not an object"),
        ({"inner": "x"}, "inner", "must be an object, not a text"),
        ({"names": []}, "names", "must be an object, not a list"),
        ({"names": {"1": "", "2": "", "3": ""}}, "names", "must have 0 to 2 entries, not 3"),
        ({"zzz": 1}, "zzz", "unknown field; known are whole, inner, real, flag, names"),
    ],
)
def test_fault_message_shows_received_value(value: object, path: str, message: str) -> None:
    assert faults(value)[path] == message


def test_integral_float_is_accepted_as_integer() -> None:
    assert parse(Outer, {"whole": 1.0, "inner": {"text": "a"}}).whole == 1


def test_fault_count_and_lengths_are_limited() -> None:
    found = faults({"x" * 1000 + str(number): 1 for number in range(1000)} | {"whole": 10**4000})
    assert len(found) <= FAULTS_MAX + 2
    assert all(len(path) <= SHOWN_MAX + 1 for path in found)
    assert max(map(len, found.values())) < 200


def test_json_schema_has_descriptions_bounds_and_required_fields() -> None:
    assert component(Outer) == {
        "type": "object",
        "description": "What is outside.",
        "properties": {
            "whole": {
                "type": "integer",
                "minimum": 0,
                "maximum": 10,
                "description": "A small number.",
            },
            "inner": {"$ref": "#/components/schemas/Inner"},
            "real": {"anyOf": [{"type": "number", "minimum": 0.5, "maximum": 2}, {"type": "null"}]},
            "flag": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            "names": {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "minProperties": 0,
                "maxProperties": 2,
            },
        },
        "required": ["whole", "inner"],
        "additionalProperties": False,
    }
    assert component(Answer)["properties"] == {
        "items": {"type": "array", "items": {"$ref": "#/components/schemas/Inner"}},
        "state": {"type": "string", "enum": ["on", "off"]},
    }


def test_type_without_json_schema_is_rejected() -> None:
    with pytest.raises(TypeError, match="no JSON Schema"):
        json_schema(bytes)


_scalars = st.none() | st.booleans() | st.integers(-2, 12) | st.floats(-1, 3) | st.text(max_size=7)
_inners = st.fixed_dictionaries({}, optional={"text": _scalars}) | _scalars
_outers = st.fixed_dictionaries(
    {},
    optional={
        "whole": _scalars,
        "inner": _inners,
        "real": _scalars,
        "flag": _scalars,
        "names": st.dictionaries(st.text(max_size=2), _scalars, max_size=3) | _scalars,
        "other": _scalars,
    },
)


@given(_outers)
def test_parser_and_json_schema_accept_same_values(value: object) -> None:
    valid = OAS31Validator(document(Outer)).is_valid(value)
    try:
        outer = parse(Outer, value)
    except InvalidJson:
        assert not valid
    else:
        assert valid
        assert OAS31Validator(document(Outer)).is_valid(to_json(outer))


class Chosen(NamedTuple):
    """A choice, and any values."""

    state: Literal["on", "off"]
    more: Mapping[str, object] = {}


def test_choice_is_read_and_others_are_rejected() -> None:
    assert parse(Chosen, {"state": "on", "more": {"a": [1, None]}}) == Chosen(
        "on", {"a": [1, None]}
    )
    for value, message in (("of", "did you mean 'off'?"), (1, "not the number 1"), ([], "a list")):
        with pytest.raises(InvalidJson, match="state") as caught:
            parse(Chosen, {"state": value})
        assert message in caught.value.faults[0].message
    properties = component(Chosen)["properties"]
    assert properties["more"] == {"type": "object", "additionalProperties": {}}


class Circle(NamedTuple):
    """A circle."""

    radius: Annotated[int, Range(1, 9)]


@dataclass
class Square:
    """A square."""

    side: int
    turned: bool | None = None


class Drawing(NamedTuple):
    """A drawing of one shape."""

    shape: Annotated[object, Variants({"circle": Circle, "square": Square}), Doc("What it is.")]
    color: str | None = None


@pytest.mark.parametrize(
    ("value", "record"),
    [
        ({"shape": "circle", "radius": 2, "color": "red"}, Drawing(Circle(2), "red")),
        ({"shape": "square", "side": 2, "turned": True}, Drawing(Square(2, True))),
    ],
)
def test_fields_of_a_variant_stand_beside_those_of_its_record(
    value: dict[str, Any], record: Drawing
) -> None:
    assert parse(Drawing, value) == record
    written = to_json(record)
    assert {name: given for name, given in written.items() if given is not None} == value
    schema = component(Drawing)
    assert list(schema["properties"]) == ["shape", "color", "radius", "side", "turned"]
    assert schema["properties"]["shape"] == {
        "type": "string",
        "enum": ["circle", "square"],
        "description": "What it is.",
    }
    assert schema["required"] == ["shape"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"shape": "circle"}, "radius: is missing: the shape circle needs it"),
        (
            {"shape": "square", "side": 1, "radius": 2},
            "radius: does not belong to",
        ),
        ({"shape": "circle", "radius": 10}, "radius: must be from 1 to 9, not 10"),
        ({"shape": "cube"}, "shape: must be one of circle, square, not 'cube'"),
        ({"color": "red"}, "shape: is missing"),
    ],
)
def test_wrong_fields_of_a_variant_are_rejected_by_their_names(
    value: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidJson, match=text):
        parse(Drawing, value)
