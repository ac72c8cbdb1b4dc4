"""Schema declarations: message classes built from declared fields."""

from __future__ import annotations

import pickle

import pytest

from minibroker_protocol import compiler
from minibroker_protocol.errors import UnsupportedVersion
from minibroker_protocol.messages.fetch import EpochEndOffset, FetchResponse, PartitionData
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.schema import (
    HIGHEST_VERSION,
    NO_VERSIONS,
    Array,
    Message,
    Struct,
    Versions,
    array,
    construct_for,
    field,
)
from minibroker_protocol.types import INT16, INT32, NULLABLE_STRING, STRING


@pytest.mark.parametrize(
    ("text", "versions", "shown"),
    [
        ("3+", (3, HIGHEST_VERSION), "3+"),
        ("0-12", (0, 12), "0-12"),
        ("4", (4, 4), "4"),
        ("4-4", (4, 4), "4"),
        ("", NO_VERSIONS, "none"),
        ("none", NO_VERSIONS, "none"),
    ],
)
def test_version_range_notations_are_parsed(
    text: str, versions: tuple[int, int], shown: str
) -> None:
    assert Versions.parse(text) == versions
    assert str(Versions.parse(text)) == shown


def test_version_range_includes_both_ends() -> None:
    assert [v for v in range(8) if Versions.parse("3-5").has(v)] == [3, 4, 5]
    assert not any(NO_VERSIONS.has(v) for v in range(3))


@pytest.mark.parametrize("text", ["5-3", "x", "3-", "-1+"])
def test_invalid_version_range_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"backwards|no version range"):
        Versions.parse(text)


class Inner(Struct):
    number: int = field(INT32, default=7)


class Outer(Message, versions="1-4", flexible="3+"):
    name: str = field(STRING)
    note: str | None = field(NULLABLE_STRING, versions="2+", default=None)
    inner: Inner = field(Inner)
    maybe: Inner | None = field(Inner, versions="2+", nullable="2+", default=None)
    items: list[Inner] = field(array(Inner), versions="2+")
    level: int = field(INT16, tagged="3+", tag=0, default=-1)


def test_fields_are_listed_in_declaration_order() -> None:
    assert [item.name for item in Outer.__fields__] == [
        "name",
        "note",
        "inner",
        "maybe",
        "items",
        "level",
    ]
    assert isinstance(Outer.__fields__[4].kind, Array)
    assert Outer.__fields__[5].versions == Versions.parse("3+")


def test_objects_do_not_share_mutable_defaults() -> None:
    one, other = Outer(), Outer()
    assert (one.name, one.note, one.level, one.unknown_tagged_fields) == ("", None, -1, None)
    assert one.inner == Inner(number=7)
    assert one.inner is not other.inner
    one.items.append(Inner())
    assert other.items == []


def test_fields_are_keyword_only_and_unknown_ones_rejected() -> None:
    with pytest.raises(TypeError):
        Outer("name")  # type: ignore[call-arg,arg-type]
    with pytest.raises(TypeError, match="nmae"):
        Outer(nmae="x")  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        Outer().nmae = "x"  # type: ignore[attr-defined]


def test_objects_compare_by_value_and_class() -> None:
    assert Outer(name="a") == Outer(name="a")
    assert Outer(name="a") != Outer(name="b")
    assert Outer(unknown_tagged_fields={9: b""}) != Outer()
    assert Inner() != EpochEndOffset()
    with pytest.raises(TypeError, match="unhashable"):
        hash(Outer())


def test_repr_shows_constructor_call() -> None:
    text = repr(Outer(name="a", unknown_tagged_fields={9: b"x"}))
    assert text == (
        "Outer(name='a', note=None, inner=Inner(number=7), maybe=None, items=[], level=-1, "
        "unknown_tagged_fields={9: b'x'})"
    )


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_objects_can_be_pickled(protocol: int) -> None:
    message = MetadataRequest(
        topics=[MetadataRequestTopic(name="t")], unknown_tagged_fields={50: b"x"}
    )
    assert pickle.loads(pickle.dumps(message, protocol)) == message


def test_object_of_decoded_class_can_be_unpickled() -> None:
    class_made_of_nothing = compiler.decode(FetchResponse, 4, compiler.encode(FetchResponse(), 4))
    assert pickle.loads(pickle.dumps(class_made_of_nothing)) == FetchResponse()


@pytest.mark.parametrize("version", [0, 5, -1])
def test_undeclared_version_is_unsupported(version: int) -> None:
    with pytest.raises(UnsupportedVersion, match=f"Outer has versions 1-4, not {version}"):
        construct_for(Outer, version)


def test_each_version_has_its_own_encoding() -> None:
    message = Outer(name="a", note="b", maybe=Inner(number=1), items=[Inner(number=2)], level=5)
    one, two, three = (compiler.encode(message, version).hex() for version in (1, 2, 3))
    number, first, second = "00000007", "00000001", "00000002"
    assert one == "000161" + number
    assert two == "000161" + "000162" + number + "01" + first + "00000001" + second
    assert three == (
        "0261"
        "0262"
        + number
        + "00"
        + "01"
        + first
        + "00"
        + "02"
        + second
        + "00"
        + "01"
        + "00"
        + "02"
        + "0005"
    )
    for version in (1, 2, 3, 4):
        data = compiler.encode(message, version)
        assert construct_for(Outer, version).build(message) == data
        assert compiler.encode(compiler.decode(Outer, version, data), version) == data


def test_tagged_struct_of_defaults_is_omitted() -> None:
    absent, default = PartitionData(), PartitionData(diverging_epoch=EpochEndOffset())
    there = PartitionData(diverging_epoch=EpochEndOffset(epoch=3, end_offset=9))
    sizes = [
        len(compiler.encode(Wrapper(partition=partition), 12))
        for partition in (absent, default, there)
    ]
    assert sizes[0] == sizes[1] < sizes[2]


class Wrapper(Message, versions="12", flexible="12+"):
    partition: PartitionData = field(PartitionData)


def test_subclass_of_class_with_fields_is_rejected() -> None:
    with pytest.raises(TypeError, match="More extends a class with fields"):

        class More(Inner):
            other: int = field(INT32)


def test_array_of_arrays_is_rejected() -> None:
    class Nested(Message, versions="0"):
        grid: list[list[int]] = field(array(array(INT32)))

    with pytest.raises(TypeError, match="grid: Kafka has no arrays of arrays"):
        construct_for(Nested, 0)
