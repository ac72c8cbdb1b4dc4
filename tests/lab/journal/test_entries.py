"""Entries are decoded on demand, and damage is no error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.lab.journal.entries import api_key, api_name, decoded, may_have_secrets
from minibroker_protocol.compiler import encode
from minibroker_protocol.entities import has_secrets
from minibroker_protocol.messages.api_versions import ApiVersionsResponse
from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.registry import ApiKey, schema
from minibroker_protocol.wire import RequestHeader, encode_request_header, encode_response_header
from tests.lab.journal.entries_of_tests import entry_of, request_entry, response_entry


def test_decoded_of_a_request_has_the_fields_of_its_version() -> None:
    assert decoded(request_entry("orders")) == {
        "group_id": "orders",
        "generation_id": 0,
        "member_id": "m",
        "group_instance_id": None,
    }


def test_decoded_of_a_response_needs_no_request() -> None:
    assert decoded(response_entry(27)) == {"throttle_time_ms": 0, "error_code": 27}


def test_decoded_shows_topic_ids_as_text() -> None:
    topic = FetchTopic(topic_id=bytes(range(16)), partitions=[FetchPartition(partition=3)])
    header = encode_request_header(RequestHeader(ApiKey.FETCH, 13, 1, None))
    frame = header + encode(FetchRequest(topics=[topic]), 13)
    found = decoded(entry_of("request", frame, api="Fetch", version=13))
    assert found is not None
    assert found["topics"][0]["topic_id"] == "AAECAwQFBgcICQoLDA0ODw"
    assert "topic" not in found["topics"][0], "version 13 has ids instead of names"
    assert found["topics"][0]["partitions"][0]["partition"] == 3


def test_decoded_of_api_versions_that_is_too_new_reads_version_0() -> None:
    frame = encode_response_header(ApiKey.API_VERSIONS, 0, 1)
    frame += encode(ApiVersionsResponse(error_code=35), 0)
    found = decoded(entry_of("response", frame, api="ApiVersions", version=99))
    assert found is not None
    assert found["error_code"] == 35


def test_decoded_without_a_frame_is_none() -> None:
    assert decoded(entry_of("request")) is None
    assert decoded(entry_of("fault")) is None


@given(st.binary(max_size=60), st.integers(-1, 100), st.integers(-1, 20))
def test_decoded_of_any_bytes_is_fields_or_none(frame: bytes, key: int, version: int) -> None:
    for kind in ("request", "response"):
        found = decoded(entry_of(kind, frame, api=api_name(key), version=version))
        assert found is None or isinstance(found, dict)


@pytest.mark.parametrize("key", list(ApiKey))
def test_api_name_is_found_again_in_every_spelling(key: ApiKey) -> None:
    for name in (api_name(key), key.name, key.name.lower(), str(int(key))):
        assert api_key(name) is key


def test_api_name_of_an_unknown_key_is_its_number() -> None:
    assert api_name(12345) == "12345"
    assert api_key("12345") is None
    assert api_key("Nothing") is None


def test_frames_of_apis_with_secrets_are_not_kept() -> None:
    assert {key for key in ApiKey if may_have_secrets(key)} >= {
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        ApiKey.ENVELOPE,
    }
    assert not may_have_secrets(12345)


@pytest.mark.parametrize("key", ApiKey)
def test_api_with_a_secret_field_keeps_no_frames(key: ApiKey) -> None:
    api = schema(key)
    is_secret = has_secrets(api.request) or has_secrets(api.response)
    assert may_have_secrets(key) == (is_secret or key is ApiKey.SASL_HANDSHAKE)
