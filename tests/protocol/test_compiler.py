"""Generated codecs against construct's reading of the same tree, for every API and version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import compiler
from protocol.errors import DecodeError, EncodeError, UnsupportedVersion
from protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
)
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.registry import ApiKey, schema
from protocol.schema import Message, construct_for

MESSAGES = [cls for key in ApiKey for cls in (schema(key).request, schema(key).response)]
Draw = Callable[[type[Message]], st.SearchStrategy[Any]]
Project = Callable[[Message, int], Message]


def versions_of(cls: type[Message]) -> range:
    return range(cls.__versions__.low, cls.__versions__.high + 1)


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_compiled_and_interpreted_agree_in_every_version(
    cls: type[Message], draw_message: Draw, project_message: Project
) -> None:
    @given(draw_message(cls))
    def check(message: Message) -> None:
        for version in versions_of(cls):
            kept = project_message(message, version)
            tree = construct_for(cls, version)
            data = compiler.encode(kept, version)
            assert data == tree.build(kept)
            decode = compiler.decoder(cls, version)
            assert decode(data) == (kept, len(data))
            assert decode(memoryview(bytearray(data))) == (kept, len(data))
            assert decode(b"before" + data + b"after", 6) == (kept, 6 + len(data))
            assert tree.parse(data) == kept

    check()


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_every_shorter_input_is_refused_with_its_place(
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


def test_a_field_that_the_version_lacks_is_left_out_and_comes_back_as_its_default() -> None:
    broker = MetadataResponseBroker(node_id=1, host="h", port=2, rack="r")
    decoded = compiler.decode(
        MetadataResponse, 0, compiler.encode(MetadataResponse(brokers=[broker]), 0)
    )
    assert decoded.brokers == [MetadataResponseBroker(node_id=1, host="h", port=2, rack=None)]


def test_records_are_views_of_the_input() -> None:
    records = PartitionProduceData(index=3, records=b"batch")
    request = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=[records])])
    buffer = bytearray(compiler.encode(request, 9))
    decoded = compiler.decode(ProduceRequest, 9, memoryview(buffer))
    view = decoded.topic_data[0].partition_data[0].records
    assert isinstance(view, memoryview)
    buffer[buffer.index(b"batch")] = ord("B")
    assert bytes(view) == b"Batch"


class Slice:
    """Stands for a part of a file: the encoder may ask its length and nothing else."""

    def __len__(self) -> int:
        return 1_000


@pytest.mark.parametrize("version", [11, 12, 17])
def test_foreign_records_are_chunks_of_their_own(version: int) -> None:
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
def test_an_error_says_which_field_and_where(
    version: int, data: bytes, what: str, offset: int
) -> None:
    with pytest.raises(DecodeError, match=what) as caught:
        compiler.decode(MetadataRequest, version, data)
    assert caught.value.offset == offset


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
def test_what_a_version_cannot_say_is_refused_by_name(
    message: Message, version: int, what: str
) -> None:
    with pytest.raises(EncodeError, match=what):
        compiler.encode(message, version)


def test_an_object_of_another_class_is_refused() -> None:
    with pytest.raises(EncodeError, match="MetadataRequest is not a ProduceRequest"):
        compiler.encoder(ProduceRequest, 9)(MetadataRequest())


def test_versions_that_are_not_declared_are_refused() -> None:
    with pytest.raises(UnsupportedVersion, match="3-13, not 2"):
        compiler.decoder(ProduceRequest, 2)
    with pytest.raises(UnsupportedVersion, match="3-13, not 14"):
        compiler.encoder(ProduceRequest, 14)


def test_a_tagged_field_whose_size_lies_is_refused() -> None:
    data = compiler.encode(FetchResponse(), 16)
    lying = data[:-1] + b"\x01\x00\x05\x01" + bytes(4)  # node_endpoints: empty, yet five bytes
    with pytest.raises(DecodeError, match="node_endpoints: its size says"):
        compiler.decode(FetchResponse, 16, lying)


def test_the_generated_text_can_be_read() -> None:
    assert compiler.decoder_source(ProduceRequest, 9).startswith("def decode(buf, pos=0):")
    assert compiler.encoder_source(ProduceRequest, 9).startswith("def encode(message):")
