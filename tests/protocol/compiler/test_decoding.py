"""Decoding: errors of invalid bytes, and references to the input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import construct as cs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker_protocol import compiler
from minibroker_protocol.compiler import decoding
from minibroker_protocol.compiler.decoding import WIDTHS, Slot, Source, fixed_code
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.messages.delete_topics import DeleteTopicsRequest
from minibroker_protocol.messages.fetch import FetchResponse
from minibroker_protocol.messages.list_groups import ListGroupsRequest
from minibroker_protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from minibroker_protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.registry import ApiKey, schema
from minibroker_protocol.schema import Message, construct_for, field
from minibroker_protocol.types import (
    BOOLEAN,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    UINT32,
    UNSIGNED_VARINT,
    UUID,
    VARINT,
    VARLONG,
)
from minibroker_protocol.wire import REQUEST_ELEMENTS_MAX, tagged_section, uvarint

# ----------------------------------------------- The writer of functions that both generators share


def test_source_lines_are_compiled_to_function() -> None:
    source = Source("title", "def double(x):")
    with source.block("if x is None:"):
        source.line("return none")
    source.line("return x * 2")
    source.bind("none", "nothing")
    double = source.function()
    assert (
        source.text()
        == "def double(x):\n    if x is None:\n        return none\n    return x * 2\n"
    )
    assert (double(None), double(4)) == ("nothing", 8)


def test_source_lines_are_mapped_to_field_paths() -> None:
    source = Source("title", "def decode(buf):")
    source.line("first", "topics[].name")
    source.fixed("second", [Slot("h", "a", "a"), Slot("i", "b", "b")])
    source.line("third")
    assert source.paths == {
        2: (Slot("", "", "topics[].name"),),
        3: (Slot("h", "a", "a"), Slot("i", "b", "b")),
    }


def test_different_objects_of_same_name_get_different_names() -> None:
    source = Source("title", "def decode(buf):")

    class Thing: ...

    first, second = Thing, type("Thing", (), {})
    assert source.bind("Thing", first) == source.bind("Thing", first) == "Thing"
    assert source.bind("Thing", second) == "Thing_"
    assert source.names == {"Thing": first, "Thing_": second}


def test_fresh_names_are_unique_and_structs_shared() -> None:
    source = Source("title", "def decode(buf):")
    assert source.fresh("n") != source.fresh("n")
    assert source.bind_struct("read", "unpack_from", "h?") == "read_hZ"
    assert source.names["read_hZ"](b"\0\1\1") == (1, True)
    assert source.bind_struct("read", "unpack_from", "h?") == "read_hZ"


@pytest.mark.parametrize(
    "kind", [BOOLEAN, INT8, INT16, INT32, INT64, UINT16, UINT32, FLOAT64, UUID], ids=str
)
def test_fixed_width_type_has_struct_code_of_its_width(kind: object) -> None:
    node = kind.node(flexible=True, nullable=False)  # type: ignore[attr-defined]
    code = fixed_code(node)
    assert code is not None
    assert WIDTHS[code] == node.sizeof()


def test_variable_width_type_has_no_struct_code() -> None:
    assert fixed_code(STRING.node(flexible=True, nullable=False)) is None
    assert fixed_code(cs.Struct()) is None


MESSAGES = [cls for key in ApiKey for cls in (schema(key).request, schema(key).response)]
Draw = Callable[[type[Message]], st.SearchStrategy[Any]]
Project = Callable[[Message, int], Message]


def versions_of(cls: type[Message]) -> range:
    return range(cls.__versions__.low, cls.__versions__.high + 1)


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_every_truncated_input_is_rejected_with_offset(
    cls: type[Message], draw_message: Draw, project_message: Project
) -> None:
    @given(st.data())
    def check(data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(versions_of(cls)))
        message = project_message(data.draw(draw_message(cls)), version)
        encoded = compiler.encode(message, version)
        for length in range(0, len(encoded), max(1, len(encoded) // 20)):
            with pytest.raises(DecodeError) as caught:
                compiler.decode(cls, version, encoded[:length])
            assert 0 <= caught.value.offset <= length
            assert cls.__name__ in caught.value.what

    check()


def test_decoded_records_are_views_of_the_input() -> None:
    records = PartitionProduceData(index=3, records=b"batch")
    request = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=[records])])
    buffer = bytearray(compiler.encode(request, 9))
    decoded = compiler.decode(ProduceRequest, 9, memoryview(buffer))
    view = decoded.topic_data[0].partition_data[0].records
    assert isinstance(view, memoryview)
    buffer[buffer.index(b"batch")] = ord("B")
    assert bytes(view) == b"Batch"


@pytest.mark.parametrize(
    ("version", "data", "what", "offset"),
    [
        (1, b"\x7f\xff\xff\xff", r"topics: array of length 2147483647 does not fit", 4),
        (1, b"\xff\xff\xff\xfe", r"topics: array length -2 is not allowed", 4),
        (0, b"\xff\xff\xff\xff", r"topics: array length -1 is not allowed", 4),
        (1, b"\0\0\0\1\0\5ab", r"topics\[\]\.name: string of length 5 does not fit", 6),
        (1, b"\0\0\0\1\0\2\xff\xff", r"topics\[\]\.name: not UTF-8", 6),
        (1, b"\0\0\0", r"topics: the bytes end here", 0),
        (4, b"\0\0\0\0", r"allow_auto_topic_creation: the bytes end here", 4),
        (9, b"\xff\xff\xff\xff\xff\xff", r"topics: varint is longer than 5 bytes", 1),
        (9, b"\x02\x02a\x01\x00\x05xx", r"topics\[\]\.tagged fields: tagged field 0", 4),
        (9, b"\x02\x82\x80\x08" + bytes(40), r"topics\[\]\.name: string length \d+ is too", 4),
    ],
)
def test_decode_error_has_field_and_offset(
    version: int, data: bytes, what: str, offset: int
) -> None:
    with pytest.raises(DecodeError, match=what) as caught:
        compiler.decode(MetadataRequest, version, data)
    assert caught.value.offset == offset


def test_tagged_field_with_wrong_size_is_rejected() -> None:
    data = compiler.encode(FetchResponse(), 16)
    lying = data[:-1] + b"\x01\x00\x05\x01" + bytes(4)  # node_endpoints: empty, yet five bytes
    with pytest.raises(DecodeError, match="node_endpoints: its size says"):
        compiler.decode(FetchResponse, 16, lying)


def names(count: int) -> bytes:
    return uvarint(count + 1) + b"\1" * count


def test_message_with_too_many_elements_is_rejected() -> None:
    ending = b"\0\0\0\0\0"
    most = compiler.decode(DeleteTopicsRequest, 4, names(REQUEST_ELEMENTS_MAX) + ending)
    assert len(most.topic_names) == REQUEST_ELEMENTS_MAX
    with pytest.raises(DecodeError, match="topic_names: the message has more than 100000 elements"):
        compiler.decode(DeleteTopicsRequest, 4, names(REQUEST_ELEMENTS_MAX + 1) + ending)


def test_elements_of_all_arrays_are_limited_in_total() -> None:
    half = REQUEST_ELEMENTS_MAX // 2
    filters = names(half) + names(half)
    assert len(compiler.decode(ListGroupsRequest, 5, filters + b"\0").types_filter) == half
    with pytest.raises(
        DecodeError, match="types_filter: the message has more than 100000 elements"
    ):
        compiler.decode(ListGroupsRequest, 5, names(half) + names(half + 1) + b"\0")


def test_numbers_count_as_elements() -> None:
    indexes = list(range(REQUEST_ELEMENTS_MAX - 1))
    topic = OffsetFetchRequestTopic(name="t", partition_indexes=indexes)
    data = compiler.encode(OffsetFetchRequest(group_id="g", topics=[topic]), 7)
    assert compiler.decode(OffsetFetchRequest, 7, data).topics == [topic]
    indexes.append(0)
    data = compiler.encode(OffsetFetchRequest(group_id="g", topics=[topic]), 7)
    with pytest.raises(DecodeError, match="partition_indexes: the message has more than"):
        compiler.decode(OffsetFetchRequest, 7, data)


def test_response_may_have_more_elements_than_a_request() -> None:
    indexes = list(range(REQUEST_ELEMENTS_MAX))
    partition = MetadataResponsePartition(replica_nodes=indexes)
    topic = MetadataResponseTopic(name="t", partitions=[partition])
    data = compiler.encode(MetadataResponse(topics=[topic]), 4)
    (found,) = compiler.decode(MetadataResponse, 4, data).topics
    assert found.partitions[0].replica_nodes == indexes


def test_unknown_tagged_fields_count_as_elements() -> None:
    fields = dict.fromkeys(range(100, 100 + REQUEST_ELEMENTS_MAX // 2), b"")
    filters = names(REQUEST_ELEMENTS_MAX // 2 + 1) + b"\1" + tagged_section(None, fields)
    with pytest.raises(
        DecodeError, match="tagged fields: the message has more than 100000 elements"
    ):
        compiler.decode(ListGroupsRequest, 5, filters)


@pytest.mark.parametrize("version", [7, 9])
def test_locating_decoder_returns_position_of_records(version: int) -> None:
    partitions = [
        PartitionProduceData(index=0, records=None),
        PartitionProduceData(index=1, records=b"batch"),
    ]
    request = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=partitions)])
    data = compiler.encode(request, version)
    decoded, end = compiler.locating_decoder(ProduceRequest, version)(b"before" + data, 6)
    first, second = (part.records for part in decoded.topic_data[0].partition_data)
    place = 6 + data.index(b"batch")
    lies: Any = second
    assert first is None
    assert lies == range(place, place + 5)
    assert end == 6 + len(data)
    with pytest.raises(DecodeError, match="records: records of length 5 does not fit"):
        compiler.locating_decoder(ProduceRequest, version)(data[: data.index(b"batch") + 2])


class Numbers(Message, versions="0"):
    """Types that no API of today uses at its top, but records and tools do."""

    count: int = field(UNSIGNED_VARINT)
    small: int = field(VARINT)
    large: int = field(VARLONG)
    id: bytes = field(UUID)


@given(
    st.integers(0, 2**32 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
)
def test_varints_are_decoded_as_by_construct(count: int, small: int, large: int) -> None:
    message = Numbers(count=count, small=small, large=large, id=bytes(range(16)))
    data = construct_for(Numbers, 0).build(message)
    assert compiler.decoder(Numbers, 0)(data) == (message, len(data))
    with pytest.raises(DecodeError, match="id: the bytes end here"):
        compiler.decode(Numbers, 0, data[:-1])


def test_node_of_unknown_kind_is_rejected() -> None:
    class Odd(Message, versions="0"):
        value: int = field(UNSIGNED_VARINT)

    tree = construct_for(Odd, 0)
    tree.subcon.subcons[0].subcon = cs.Padding(1) * "padding"
    with pytest.raises(TypeError, match="value: no decoding is known"):
        decoding.emit(tree, "Odd")


def test_has_records_is_true_for_messages_with_records_only() -> None:
    assert decoding.has_records(construct_for(ProduceRequest, 9))
    assert not decoding.has_records(construct_for(MetadataResponse, 9))
