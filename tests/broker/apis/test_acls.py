"""ACLs are created, found by filters, and deleted."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.acls import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS
from minibroker.broker.metadata.acls import Filter, as_filter
from minibroker.broker.security.acl import Operation, Resource
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_acls import AclCreation, CreateAclsRequest
from minibroker_protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from minibroker_protocol.messages.describe_acls import DescribeAclsRequest
from tests.broker.apis.authorization.callers import ALICE, SETTINGS, grant
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
    made = await apis.ask(CREATE_ACLS, CreateAclsRequest(creations=wanted), version)
    assert [result.error_code for result in made.results] == [0, ErrorCode.INVALID_REQUEST, 0]
    assert made.results[1].error_message == "Invalid operation 0"
    found = await apis.ask(DESCRIBE_ACLS, DescribeAclsRequest(**ANY), version)
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
    gone = await apis.ask(DELETE_ACLS, DeleteAclsRequest(filters=filters), version)
    assert [len(result.matching_acls) for result in gone.filter_results] == [1, 0]
    assert gone.filter_results[1].error_code == ErrorCode.INVALID_REQUEST
    found = await apis.ask(DESCRIBE_ACLS, DescribeAclsRequest(**ANY), version)
    assert [one.pattern_type for one in found.resources] == [3]


async def test_acl_requests_without_authorizer_are_security_disabled(apis: Any) -> None:
    disabled = ErrorCode.SECURITY_DISABLED
    made = await apis.ask(CREATE_ACLS, CreateAclsRequest(creations=[creation()]), 3)
    assert [result.error_code for result in made.results] == [disabled]
    found = await apis.ask(DESCRIBE_ACLS, DescribeAclsRequest(**ANY), 3)
    assert found.error_code == disabled
    gone = await apis.ask(DELETE_ACLS, DeleteAclsRequest(filters=[DeleteAclsFilter(**ANY)]), 3)
    assert [result.error_code for result in gone.filter_results] == [disabled]


# Describe acls ------------------------------------------------------------------------------------


async def test_invalid_filter_is_rejected(make_apis: ApisMaker) -> None:
    apis = await make_apis(*SETTINGS)
    found = await apis.ask(DESCRIBE_ACLS, DescribeAclsRequest(**{**ANY, "operation": 0}), 3)
    assert found.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "part", ["resource_type_filter", "pattern_type_filter", "operation", "permission_type"]
)
async def test_filter_with_unknown_enum_value_matches_no_acl(
    make_apis: ApisMaker, part: str
) -> None:
    apis = await make_apis(*SETTINGS)
    await grant(apis, Resource.TOPIC, "cats", Operation.READ)
    found = await apis.ask(DESCRIBE_ACLS, DescribeAclsRequest(**{**ANY, part: 77}), 3)
    assert (found.error_code, found.resources) == (ErrorCode.NONE, [])


async def test_acls_of_one_pattern_are_grouped_in_one_resource(make_apis: ApisMaker) -> None:
    apis = await make_apis(*SETTINGS)
    await grant(apis, Resource.TOPIC, "cats", Operation.READ, Operation.WRITE)
    found = await apis.ask(
        DESCRIBE_ACLS, DescribeAclsRequest(**{**ANY, "principal_filter": str(ALICE)}), 3
    )
    [resource] = found.resources
    assert [rule.operation for rule in resource.acls] == [Operation.READ, Operation.WRITE]


# Delete acls --------------------------------------------------------------------------------------


async def test_acl_matching_two_filters_is_listed_for_both(make_apis: ApisMaker) -> None:
    apis = await make_apis(*SETTINGS)
    await grant(apis, Resource.GROUP, "g", Operation.READ)
    filters = [DeleteAclsFilter(**ANY), DeleteAclsFilter(**{**ANY, "resource_type_filter": 3})]
    gone = await apis.ask(DELETE_ACLS, DeleteAclsRequest(filters=filters), 3)
    assert [len(result.matching_acls) for result in gone.filter_results] == [1, 1]
    assert not apis.controller.at_processor.acls


# Acl filters --------------------------------------------------------------------------------------


def test_delete_acls_filter_is_converted_field_by_field() -> None:
    given = DeleteAclsFilter(
        **{**ANY, "resource_name_filter": "n", "principal_filter": "p", "host_filter": "h"}
    )
    assert as_filter(given, 7) == Filter(7, "n", 1, "p", "h", 1, 1)
