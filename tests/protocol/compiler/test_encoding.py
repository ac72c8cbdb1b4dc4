"""Encoding: chunks around records, and refusals that name the field."""

from __future__ import annotations

import construct as cs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker_protocol import compiler
from minibroker_protocol.compiler import encoding
from minibroker_protocol.errors import EncodeError
from minibroker_protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from minibroker_protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
)
from minibroker_protocol.messages.produce import ProduceRequest
from minibroker_protocol.schema import Message, construct_for, field
from minibroker_protocol.types import INT32, UNSIGNED_VARINT, VARINT, VARLONG


class Slice:
    """Represents a part of a file: the encoder may use its length only."""

    def __len__(self) -> int:
        return 1_000


@pytest.mark.parametrize("version", [11, 12, 17])
def test_record_slices_are_encoded_as_separate_chunks(version: int) -> None:
    first, second = Slice(), Slice()
    partitions = [
        PartitionData(partition_index=0, records=first),
        PartitionData(partition_index=1, records=None),
        PartitionData(partition_index=2, records=second),
    ]
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])
    chunks = compiler.encoder(FetchResponse, version)(response)
    assert [type(chunk) for chunk in chunks] == [bytes, Slice, bytes, Slice, bytes][: len(chunks)]
    assert (chunks[1], chunks[3]) == (first, second)
    joined = b"".join(bytes(1_000) if isinstance(c, Slice) else bytes(c) for c in chunks)  # type: ignore[call-overload]
    decoded = compiler.decode(FetchResponse, version, joined)
    lengths = [len(p.records or b"") for p in decoded.responses[0].partitions]
    assert lengths == [1_000, 0, 1_000]
    with pytest.raises(EncodeError, match="not bytes"):
        compiler.encode(response, version)


@pytest.mark.parametrize(
    ("message", "version", "what"),
    [
        (MetadataResponse(controller_id=2**31), 1, r"controller_id"),
        (MetadataResponse(brokers=[MetadataResponseBroker(host=None)]), 9, r"host"),  # type: ignore[arg-type]
        (MetadataRequest(topics=None), 0, r"topics"),
        (MetadataRequest(topics=[MetadataRequestTopic(name="x" * 40_000)]), 9, r"name.*40000"),
        (MetadataRequest(topics=[MetadataRequestTopic(topic_id=b"short")]), 12, r"topic_id"),
        (MetadataRequest(topics=[MetadataRequestTopic(name="\ud800")]), 9, r"name"),
    ],
)
def test_value_not_encodable_in_version_is_rejected_with_field_name(
    message: Message, version: int, what: str
) -> None:
    with pytest.raises(EncodeError, match=what):
        compiler.encode(message, version)


def test_object_of_other_class_is_rejected() -> None:
    with pytest.raises(EncodeError, match="MetadataRequest is not a ProduceRequest"):
        compiler.encoder(ProduceRequest, 9)(MetadataRequest())


class Numbers(Message, versions="0"):
    count: int = field(UNSIGNED_VARINT)
    small: int = field(VARINT)
    large: int = field(VARLONG)


@given(
    st.integers(0, 2**32 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
)
def test_varints_are_encoded_as_by_construct(count: int, small: int, large: int) -> None:
    message = Numbers(count=count, small=small, large=large)
    assert compiler.encode(message, 0) == construct_for(Numbers, 0).build(message)


def test_tagged_number_is_omitted_if_default() -> None:
    class Tagged(Message, versions="0", flexible="0+"):
        level: int = field(INT32, tagged="0+", tag=3, default=-1)

    assert compiler.encode(Tagged(), 0) == b"\0"
    assert compiler.encode(Tagged(level=0), 0).hex() == "01" + "0304" + "00000000"
    assert compiler.encode(Tagged(level=1, unknown_tagged_fields={1: b"x"}), 0).hex() == (
        "02" + "010178" + "030400000001"
    )


def test_node_of_unknown_kind_is_rejected() -> None:
    class Odd(Message, versions="0"):
        value: int = field(UNSIGNED_VARINT)

    tree = construct_for(Odd, 0)
    tree.subcon.subcons[0].subcon = cs.Padding(1) * "padding"
    with pytest.raises(TypeError, match="value: no encoding is known"):
        encoding.emit(tree, "Odd")
