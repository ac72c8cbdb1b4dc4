from __future__ import annotations

import json
from typing import Any

import pytest

from minibroker.cli.output import InvalidUsage
from minibroker.cli.request import field_lines, message_of
from minibroker_protocol.messages.metadata import MetadataRequest
from minibroker_protocol.messages.sasl_authenticate import SaslAuthenticateRequest


def test_request_is_sent_in_a_version_and_its_response_printed(
    command: Any, minibroker_topic: str
) -> None:
    topics = f'topics=[{{"name": "{minibroker_topic}"}}]'
    result = command("request", "metadata", topics, "--api-version", "4", "--json")
    (topic,) = json.loads(result.stdout)["topics"]
    assert (topic["name"], topic["error_code"]) == (minibroker_topic, 0)
    assert "topic_id" not in topic  # Added in version 10.
    newest = command("request", "3", topics)
    assert len(json.loads(newest.stdout)["topics"][0]["topic_id"]) == 22
    assert newest.stdout.startswith('{\n  "throttle_time_ms": 0,\n')
    assert newest.stderr == ""


def test_error_codes_of_a_response_are_named(command: Any) -> None:
    result = command("request", "DescribeGroups", 'groups=["none", "unknown"]')
    assert [group["error_code"] for group in json.loads(result.stdout)["groups"]] == [69, 69]
    assert result.stderr == "error code 69 is GROUP_ID_NOT_FOUND\n"


def test_bytes_are_base64() -> None:
    (request,) = [message_of(SaslAuthenticateRequest, ("auth_bytes=AGFsaWNl",))]
    assert request == SaslAuthenticateRequest(auth_bytes=b"\0alice")


def test_fields_are_listed_with_types_and_versions(command: Any) -> None:
    assert command("request", "Metadata", "--fields").stdout.splitlines() == list(
        field_lines(MetadataRequest)
    )
    assert list(field_lines(MetadataRequest))[:3] == [
        "topics: MetadataRequestTopic[]  (versions 0+)",
        "  topic_id: uuid  (versions 10+)",
        "  name: string  (versions 0+)",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("Nope",), "Nope: no API is called 'Nope'"),
        (("Metadata", "--api-version", "99"), "versions 0-13 of Metadata are known"),
        (("Metadata", "topics"), "'topics' is not field=value"),
        (("Metadata", "topics=[]", "topics=[]"), "topics is given twice"),
        (("Metadata", "topics=cats"), "topics: 'cats' is not JSON"),
        (("Metadata", 'topics=[{"nam": "cats"}]'), r"request\.topics\[0\]\.nam .*name"),
        (("Metadata", "allow_auto_topic_creation=1"), "must be true or false"),
    ],
)
def test_request_that_cannot_be_sent_is_rejected(
    command: Any, words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InvalidUsage, match=message):
        command("request", *words)
