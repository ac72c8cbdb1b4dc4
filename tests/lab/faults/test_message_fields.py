"""JSON becomes fields of responses, or is rejected with the path."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.lab.faults.message_fields import response_faults, set_fields
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.messages.fetch import FetchResponse
from minibroker_protocol.messages.metadata import MetadataResponse
from minibroker_protocol.types import uuid_text

TOPIC_ID = bytes(range(16))


def faults(fields: dict[str, Any], cls: Any = MetadataResponse) -> dict[str, str]:
    return {fault.path: fault.message for fault in response_faults(cls, fields)}


def test_accepted_fields_are_set_and_encoded() -> None:
    topic = {
        "name": "t",
        "topic_id": uuid_text(TOPIC_ID),
        "is_internal": True,
        "partitions": [{"partition_index": 3, "replica_nodes": [1, 2]}],
    }
    fields = {"controller_id": 7, "cluster_id": None, "topics": [topic]}
    assert faults(fields) == {}
    response = MetadataResponse()
    set_fields(response, fields)
    data = encode(response, 12)
    decoded = decode(MetadataResponse, 12, data)
    assert (decoded.controller_id, decoded.cluster_id) == (7, None)
    assert decoded.topics[0].topic_id == TOPIC_ID
    assert decoded.topics[0].partitions[0].replica_nodes == [1, 2]


def test_records_are_base64() -> None:
    fields = {"responses": [{"partitions": [{"records": "AAEC"}]}]}
    assert faults(fields, FetchResponse) == {}
    response = FetchResponse()
    set_fields(response, fields)
    assert response.responses[0].partitions[0].records == b"\0\1\2"


@pytest.mark.parametrize(
    ("fields", "path", "message"),
    [
        ({"controler_id": 1}, "response.controler_id", "did you mean 'controller_id'?"),
        ({"controller_id": "x"}, "response.controller_id", "must be a whole number"),
        ({"controller_id": True}, "response.controller_id", "must be a whole number"),
        ({"controller_id": 2**31}, "response.controller_id", "range of int32"),
        ({"controller_id": None}, "response.controller_id", "must not be null"),
        ({"topics": {}}, "response.topics", "must be a list"),
        ({"topics": [5]}, "response.topics[0]", "must be an object"),
        ({"topics": [{"is_internal": 1}]}, "response.topics[0].is_internal", "true or false"),
        ({"topics": [{"topic_id": "x"}]}, "response.topics[0].topic_id", ""),
        ({"topics": [{"name": 1}]}, "response.topics[0].name", "must be a text"),
        ({"cluster_id": "x" * 40_000}, "response.cluster_id", "32767 bytes"),
    ],
)
def test_wrong_field_is_rejected_with_its_path(
    fields: dict[str, Any], path: str, message: str
) -> None:
    found = faults(fields)
    assert list(found) == [path]
    assert message in found[path]
