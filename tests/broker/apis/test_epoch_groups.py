"""Each group of a request to describe groups is in the response, with what it is or an error."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.consumer_groups import CONSUMER_GROUP_DESCRIBE
from minibroker.broker.apis.groups import JOIN_GROUP
from minibroker.broker.apis.share_groups import SHARE_GROUP_DESCRIBE
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker_protocol.messages.share_group_describe import ShareGroupDescribeRequest


@pytest.mark.parametrize(
    ("api", "request_type", "name"),
    [
        (CONSUMER_GROUP_DESCRIBE, ConsumerGroupDescribeRequest, "consumer"),
        (SHARE_GROUP_DESCRIBE, ShareGroupDescribeRequest, "share"),
    ],
)
async def test_groups_that_are_not_described_have_errors_in_the_order_of_the_request(
    group_apis: Any, api: Any, request_type: Any, name: str
) -> None:
    join = JoinGroupRequest(
        group_id="classic",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        group_instance_id="s",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    await group_apis.ask(JOIN_GROUP, join, 9)
    asked = ["missing", "", "classic", "missing"]
    response = await group_apis.ask(api, request_type(group_ids=asked), 1)
    not_found = ErrorCode.GROUP_ID_NOT_FOUND
    missing = ("missing", not_found, "Group missing not found.")
    assert [(each.group_id, each.error_code, each.error_message) for each in response.groups] == [
        missing,
        ("", ErrorCode.INVALID_GROUP_ID, None),
        ("classic", not_found, f"Group classic is not a {name} group."),
        missing,
    ]
