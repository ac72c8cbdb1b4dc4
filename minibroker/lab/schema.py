"""Parse, write and describe records as JSON, from one declaration.

Owns the mapping between records, JSON values and JSON Schema. A record is an annotated
``NamedTuple``, because a frozen dataclass class takes four times as long to create and a broker
creates dozens at startup. Must never know the meaning of a record, nor HTTP. The invariant: what
``parse`` accepts and what ``to_json`` writes are valid against ``json_schema`` of the same type.
A field with ``Variants`` is one of several records, whose fields are next to it. Kafka has no
counterpart.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from minibroker.broker.settings.setting import similar_names

Json: TypeAlias = Any
"""A value that the ``json`` module reads and writes."""

_T = TypeVar("_T")

_SIMILARITY_MIN: Final = 0.5
"""Least similarity of a field that is suggested."""

SHOWN_MAX: Final = 60
"""Maximum number of characters of the input that an error repeats."""

FAULTS_MAX: Final = 20
"""Maximum number of faults in one response before unknown fields are skipped."""


class Doc(NamedTuple):
    """Description of a field."""

    text: str


class Range(NamedTuple):
    """Minimum and maximum value of a number."""

    least: float
    greatest: float


class Length(NamedTuple):
    """Minimum and maximum length of a text, or number of entries of a mapping."""

    least: int
    greatest: int


class Variants(NamedTuple):
    """The records of a field that is one of several: named tuples or data classes, by name.

    As JSON the field is the name: ``{"action": "delay", "delay_ms": 5, "topic": "orders"}``.
    """

    records: Mapping[str, type]


class Fault(NamedTuple):
    """An error in a JSON value: its path (``configs.retention.ms``) and a message."""

    path: str
    message: str


class InvalidJson(ValueError):
    """A JSON value does not match its type; ``faults`` lists all errors."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(f"{fault.path}: {fault.message}" for fault in self.faults))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The name that may have been meant, as the end of a message; empty if none is similar."""
    similar = similar_names(name, known, count_max=1, similarity_min=_SIMILARITY_MIN)
    return f"; did you mean {similar[0]!r}?" if similar else ""


def unknown_field(path: str, name: str, known: Iterable[str]) -> Fault:
    """The fault of a field that is none of those that are known."""
    advice = did_you_mean(name, known) or f"; known are {', '.join(known)}"
    return Fault(path, f"unknown field{advice}")


# Writing ------------------------------------------------------------------------------------


def to_json(value: object) -> Json:
    """Convert a record, or any nesting of supported types, to a JSON value."""
    if isinstance(value, tuple) and _is_record(type(value)):
        names = cast("_Record", value)._fields
        given = dict(zip(names, value, strict=True))
        for tag, records in _variants(type(value)).items():
            variant = given[tag]
            given[tag] = next(name for name, kind in records.items() if type(variant) is kind)
            given |= {name: getattr(variant, name) for name in record_fields(type(variant))}
        return {name: to_json(item) for name, item in given.items()}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


@cache
def _hints(cls: type) -> dict[str, Any]:
    """The types of all fields as JSON; those of variants may be absent."""
    hints = {name: _all_hints(cls)[name] for name in record_fields(cls)}
    for tag, records in _variants(cls).items():
        notes = [note for note in _unwrap(hints[tag])[1] if not isinstance(note, Variants)]
        hints[tag] = Annotated[Literal[tuple(records)], *notes]
        for record in records.values():
            for name, hint in _hints(record).items():
                hints.setdefault(name, _optional(hint))
    return hints


@cache
def _all_hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


@cache
def _variants(record: type) -> dict[str, Mapping[str, type]]:
    """The records of the fields that are one of several."""
    return {
        name: note.records
        for name, hint in _all_hints(record).items()
        for note in _unwrap(hint)[1]
        if isinstance(note, Variants)
    }


def record_fields(record: type) -> dict[str, bool]:
    """The fields of a record itself, and whether each of them is needed."""
    if is_dataclass(record):
        return {each.name: each.default is MISSING for each in fields(record)}
    plain = cast("type[_Record]", record)
    return {name: name not in plain._field_defaults for name in plain._fields}


def _optional(hint: Any) -> Any:
    base, notes = _unwrap(hint)
    return Annotated[base | None, *notes] if notes else base | None


# Describing ---------------------------------------------------------------------------------


def json_schema(hint: Any) -> dict[str, Json]:
    """Return the JSON Schema (draft 2020-12) of a type; records become references to components."""
    base, notes = _unwrap(hint)
    schema = _bare_schema(base)
    for note in notes:
        match note:
            case Doc(text):
                schema["description"] = text
            case Range(least, greatest):
                _not_null(schema).update(minimum=least, maximum=greatest)
            case Length(least, greatest) if _is_mapping(_without_none(base)):
                _not_null(schema).update(minProperties=least, maxProperties=greatest)
            case Length(least, greatest) if _is_list(_without_none(base)):
                _not_null(schema).update(minItems=least, maxItems=greatest)
            case Length(least, greatest):
                _not_null(schema).update(minLength=least, maxLength=greatest)
    return schema


def summary(record: type) -> str:
    """What a record is, from its docstring, in one line."""
    return " ".join((record.__doc__ or "").split())


def component(record: type) -> dict[str, Json]:
    """Return the JSON Schema of a record, for the components of the OpenAPI description."""
    return {
        "type": "object",
        "description": summary(record),
        "properties": {name: json_schema(hint) for name, hint in _hints(record).items()},
        "required": [name for name, is_needed in record_fields(record).items() if is_needed],
        "additionalProperties": False,
    }


def components_of(hint: Any) -> Iterator[type]:
    """Yield all records in a type, including itself, outermost first."""
    base, _ = _unwrap(hint)
    if _is_record(base):
        yield base
        for inner in _hints(base).values():
            yield from components_of(inner)
    else:
        for inner in get_args(base):
            if get_origin(base) is not Literal and inner is not Ellipsis:
                yield from components_of(inner)


def _bare_schema(base: Any) -> dict[str, Json]:
    if _is_record(base):
        return {"$ref": f"#/components/schemas/{base.__name__}"}
    if base in _SIMPLE:
        return {"type": _SIMPLE[base]}
    if base is object:
        return {}
    origin, arguments = get_origin(base), get_args(base)
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if _is_mapping(base):
        return {"type": "object", "additionalProperties": json_schema(arguments[1])}
    if origin is tuple:
        return {"type": "array", "items": json_schema(arguments[0])}
    if origin in {Union, types.UnionType}:
        return {"anyOf": [json_schema(argument) for argument in arguments]}
    raise TypeError(f"{base!r} has no JSON Schema here; see minibroker.lab.schema")


_SIMPLE: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    types.NoneType: "null",
}


def _not_null(schema: dict[str, Json]) -> dict[str, Json]:
    return cast("dict[str, Json]", schema["anyOf"][0]) if "anyOf" in schema else schema


def _unwrap(hint: Any) -> tuple[Any, tuple[object, ...]]:
    if get_origin(hint) is Annotated:
        base, *notes = get_args(hint)
        return base, tuple(notes)
    return hint, ()


def _without_none(base: Any) -> Any:
    if get_origin(base) in {Union, types.UnionType}:
        return next(inner for inner in get_args(base) if inner is not types.NoneType)
    return base


def _is_list(base: Any) -> bool:
    return get_origin(base) is tuple


def _is_mapping(base: Any) -> bool:
    return get_origin(base) is Mapping


class _Record(Protocol):
    """Attributes of every ``NamedTuple`` class."""

    _fields: ClassVar[tuple[str, ...]]
    _field_defaults: ClassVar[dict[str, Any]]


def _is_record(base: Any) -> bool:
    return isinstance(base, type) and issubclass(base, tuple) and hasattr(base, "_field_defaults")


# Checking -----------------------------------------------------------------------------------


def parse(record: type[_T], value: Json) -> _T:
    """Parse a JSON value into a record.

    Raises ``InvalidJson`` with all errors, each with the path of its field.
    """
    faults: list[Fault] = []
    result = _parse(record, value, "", faults)
    if faults:
        raise InvalidJson(faults)
    return cast("_T", result)


def _parse(hint: Any, value: Json, path: str, faults: list[Fault]) -> Any:
    base, notes = _unwrap(hint)
    if get_origin(base) in {Union, types.UnionType}:
        if value is None:
            return None
        base = _without_none(base)
    if _is_record(base):
        return _parse_object(base, value, path, faults)
    before = len(faults)
    if base in _READERS:
        value = _READERS[base](value, path, faults)
    elif _is_mapping(base):
        value = _parse_mapping(base, value, path, faults)
    elif get_origin(base) is tuple:
        value = _parse_list(base, value, path, faults)
    elif get_origin(base) is Literal:
        value = _read_literal(get_args(base), value, path, faults)
    elif base is not object:  # An object is any JSON value.
        raise TypeError(f"{base!r} can't be read from JSON here; see minibroker.lab.schema")
    if len(faults) == before:
        for note in notes:
            _check(note, value, path, faults)
    return value


def _parse_object(record: type, value: Json, path: str, faults: list[Fault]) -> Any:
    if not isinstance(value, dict):
        faults.append(Fault(path or "(body)", f"must be an object, not {_kind(value)}"))
        return None
    hints, own = _hints(record), record_fields(record)
    for name in value:
        if name not in hints and len(faults) < FAULTS_MAX:
            faults.append(unknown_field(_below(path, name), name, hints))
    given: dict[str, Any] = {}
    for name, hint in hints.items():
        if name in value:
            given[name] = _parse(hint, value[name], _below(path, name), faults)
        elif own.get(name):
            faults.append(Fault(_below(path, name), "is missing"))
    if not faults:
        for tag, records in _variants(record).items():
            faults += _misplaced_fields(tag, records[given[tag]], given, own, path)
    if faults:
        return None
    for tag, records in _variants(record).items():
        kind = records[given[tag]]
        given[tag] = kind(**_given_fields(kind, given))
    return record(**{name: given[name] for name in own if name in given})


def _given_fields(record: type, given: Mapping[str, Any]) -> dict[str, Any]:
    known = record_fields(record)
    return {name: given[name] for name in known if given.get(name) is not None}


def _misplaced_fields(
    tag: str, record: type, given: Mapping[str, Any], own: Mapping[str, bool], path: str
) -> Iterator[Fault]:
    """Faults of fields that a variant needs, or that are those of another one."""
    known, present = record_fields(record), _given_fields(record, given)
    for name, is_needed in known.items():
        if is_needed and name not in present:
            yield Fault(_below(path, name), f"is missing: the {tag} {given[tag]} needs it")
    for name, value in given.items():
        if value is not None and name not in own and name not in known:
            yield Fault(_below(path, name), f"does not belong to the {tag} {given[tag]}")


def _parse_mapping(base: Any, value: Json, path: str, faults: list[Fault]) -> Any:
    if not isinstance(value, dict):
        faults.append(Fault(path, f"must be an object, not {_kind(value)}"))
        return None
    inner = get_args(base)[1]
    return {key: _parse(inner, item, _below(path, key), faults) for key, item in value.items()}


def _parse_list(base: Any, value: Json, path: str, faults: list[Fault]) -> Any:
    if not isinstance(value, list):
        faults.append(Fault(path, f"must be a list, not {_kind(value)}"))
        return ()
    inner = get_args(base)[0]
    return tuple(
        _parse(inner, item, _below(path, str(index)), faults)
        for index, item in enumerate(value)
        if len(faults) < FAULTS_MAX
    )


def _read_literal(values: tuple[str, ...], value: Json, path: str, faults: list[Fault]) -> Json:
    if value not in values:
        known = ", ".join(values)
        if not isinstance(value, str):
            faults.append(Fault(path, f"must be one of {known}, not {_kind(value)}"))
            return None
        advice = did_you_mean(value, values)
        faults.append(Fault(path, f"must be one of {known}, not {_shown(value)!r}{advice}"))
    return value


def _read_str(value: Json, path: str, faults: list[Fault]) -> Json:
    if not isinstance(value, str):
        faults.append(Fault(path, f"must be a text, not {_kind(value)}"))
    return value


def _read_bool(value: Json, path: str, faults: list[Fault]) -> Json:
    if not isinstance(value, bool):
        faults.append(Fault(path, f"must be true or false, not {_kind(value)}"))
    return value


def _read_int(value: Json, path: str, faults: list[Fault]) -> Json:
    # JSON has only one type of number: 1e3 is as valid as 1000.
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        faults.append(Fault(path, f"must be a whole number, not {_kind(value)}"))
    return value


def _read_float(value: Json, path: str, faults: list[Fault]) -> Json:
    if not isinstance(value, int | float) or isinstance(value, bool):
        faults.append(Fault(path, f"must be a number, not {_kind(value)}"))
    return value


_READERS = {str: _read_str, bool: _read_bool, int: _read_int, float: _read_float}


def _check(note: object, value: Json, path: str, faults: list[Fault]) -> None:
    match note:
        case Range(least, greatest) if not least <= value <= greatest:
            faults.append(
                Fault(path, f"must be from {least:,} to {greatest:,}, not {_shown(f'{value:,}')}")
            )
        case Length(least, greatest) if not least <= len(value) <= greatest:
            unit = "characters" if isinstance(value, str) else "entries"
            faults.append(Fault(path, f"must have {least} to {greatest} {unit}, not {len(value)}"))


def _below(path: str, name: str) -> str:
    return f"{path}.{_shown(name)}" if path else _shown(name)


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def _kind(value: Json) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return "a text"
        case int() | float():
            return f"the number {_shown(f'{value:,}')}"
        case list():
            return "a list"
        case _:
            return "an object"
