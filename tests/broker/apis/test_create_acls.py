"""CreateAcls, DescribeAcls and DeleteAcls: rules come, are found, and go."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.create_acls import API
from minibroker.broker.apis.delete_acls import API as DELETE
from minibroker.broker.apis.describe_acls import API as DESCRIBE
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_acls import AclCreation, CreateAclsRequest
from minibroker_protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from minibroker_protocol.messages.describe_acls import DescribeAclsRequest
from tests.broker.apis.authorization.callers import SETTINGS
from tests.broker.apis.conftest import ApisMaker

ANY: dict[str, Any] = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def creation(**changed: Any) -> AclCreation:
    given: dict[str, Any] = {
        "resource_type": 2,
        "resource_name": "cats",
        "principal": "User:alice",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    return AclCreation(**{**given, **changed})


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_acls_are_created_described_and_deleted(make_apis: ApisMaker, version: int) -> None:
    apis = await make_apis(*SETTINGS)
    wanted = [creation(), creation(operation=0), creation(resource_pattern_type=4)]
    made = await apis.ask(API, CreateAclsRequest(creations=wanted), version)
    assert [result.error_code for result in made.results] == [0, ErrorCode.INVALID_REQUEST, 0]
    assert made.results[1].error_message == "Invalid operation 0"
    found = await apis.ask(DESCRIBE, DescribeAclsRequest(**ANY), version)
    assert [(one.resource_name, one.pattern_type) for one in found.resources] == [
        ("cats", 3),
        ("cats", 4),
    ]
    [rule] = found.resources[0].acls
    assert (rule.principal, rule.host, rule.operation) == ("User:alice", "*", 3)
    filters = [
        DeleteAclsFilter(**{**ANY, "pattern_type_filter": 4}),
        DeleteAclsFilter(**{**ANY, "operation": 99}),
    ]
    gone = await apis.ask(DELETE, DeleteAclsRequest(filters=filters), version)
    assert [len(result.matching_acls) for result in gone.filter_results] == [1, 0]
    assert gone.filter_results[1].error_code == ErrorCode.INVALID_REQUEST
    found = await apis.ask(DESCRIBE, DescribeAclsRequest(**ANY), version)
    assert [one.pattern_type for one in found.resources] == [3]


async def test_acl_requests_without_authorizer_are_security_disabled(apis: Any) -> None:
    disabled = ErrorCode.SECURITY_DISABLED
    made = await apis.ask(API, CreateAclsRequest(creations=[creation()]), 3)
    assert [result.error_code for result in made.results] == [disabled]
    found = await apis.ask(DESCRIBE, DescribeAclsRequest(**ANY), 3)
    assert found.error_code == disabled
    gone = await apis.ask(DELETE, DeleteAclsRequest(filters=[DeleteAclsFilter(**ANY)]), 3)
    assert [result.error_code for result in gone.filter_results] == [disabled]
