"""Generated codecs compared with construct's interpretation, for every API and version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker_protocol import compiler
from minibroker_protocol.errors import UnsupportedVersion
from minibroker_protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
)
from minibroker_protocol.messages.produce import ProduceRequest
from minibroker_protocol.registry import ApiKey, schema
from minibroker_protocol.schema import Message, Struct, construct_for, field
from minibroker_protocol.types import INT32

MESSAGES = [cls for key in ApiKey for cls in (schema(key).request, schema(key).response)]
Draw = Callable[[type[Message]], st.SearchStrategy[Any]]
Project = Callable[[Message, int], Message]


def versions_of(cls: type[Message]) -> range:
    return range(cls.__versions__.low, cls.__versions__.high + 1)


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_compiled_codec_matches_construct_in_every_version(
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


def test_field_missing_in_version_is_decoded_as_its_default() -> None:
    broker = MetadataResponseBroker(node_id=1, host="h", port=2, rack="r")
    decoded = compiler.decode(
        MetadataResponse, 0, compiler.encode(MetadataResponse(brokers=[broker]), 0)
    )
    assert decoded.brokers == [MetadataResponseBroker(node_id=1, host="h", port=2, rack=None)]


class Part(Struct):
    number: int = field(INT32)


class Whole(Message, versions="0", flexible="0+"):
    part: Part | None = field(Part, nullable="0+", tagged="0+", tag=0)


@pytest.mark.parametrize(
    ("whole", "data"),
    [
        (Whole(part=None), b"\1\0\1\0"),
        (Whole(), b"\0"),
        (Whole(part=Part(number=5)), b"\1\0\6\1\0\0\0\5\0"),
    ],
)
def test_tagged_struct_that_may_be_null_is_as_in_kafka(whole: Whole, data: bytes) -> None:
    """Kafka's generated classes write 0 for null there, and -1 in fields without a tag."""
    tree = construct_for(Whole, 0)
    assert compiler.encode(whole, 0) == tree.build(whole) == data
    assert compiler.decode(Whole, 0, data) == tree.parse(data) == whole


def test_undeclared_version_is_unsupported() -> None:
    with pytest.raises(UnsupportedVersion, match="3-13, not 2"):
        compiler.decoder(ProduceRequest, 2)
    with pytest.raises(UnsupportedVersion, match="3-13, not 14"):
        compiler.encoder(ProduceRequest, 14)


def test_generated_source_is_available() -> None:
    assert compiler.decoder_source(ProduceRequest, 9).startswith("def decode(buf, pos=0):")
    assert compiler.encoder_source(ProduceRequest, 9).startswith("def encode(message):")
