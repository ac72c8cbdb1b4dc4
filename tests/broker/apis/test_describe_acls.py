"""DescribeAcls: matches of filters; for creation and deletion see ``test_create_acls``."""

from __future__ import annotations

import pytest

from minibroker.broker.apis.describe_acls import API as DESCRIBE
from minibroker.broker.security.acl import Operation, Resource
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.describe_acls import DescribeAclsRequest
from tests.broker.apis.authorization.callers import ALICE, SETTINGS, grant
from tests.broker.apis.conftest import ApisMaker
from tests.broker.apis.test_create_acls import ANY


async def test_invalid_filter_is_rejected(make_apis: ApisMaker) -> None:
    apis = await make_apis(*SETTINGS)
    found = await apis.ask(DESCRIBE, DescribeAclsRequest(**{**ANY, "operation": 0}), 3)
    assert found.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "part", ["resource_type_filter", "pattern_type_filter", "operation", "permission_type"]
)
async def test_filter_with_unknown_enum_value_matches_no_acl(
    make_apis: ApisMaker, part: str
) -> None:
    apis = await make_apis(*SETTINGS)
    await grant(apis, Resource.TOPIC, "cats", Operation.READ)
    found = await apis.ask(DESCRIBE, DescribeAclsRequest(**{**ANY, part: 77}), 3)
    assert (found.error_code, found.resources) == (ErrorCode.NONE, [])


async def test_acls_of_one_pattern_are_grouped_in_one_resource(make_apis: ApisMaker) -> None:
    apis = await make_apis(*SETTINGS)
    await grant(apis, Resource.TOPIC, "cats", Operation.READ, Operation.WRITE)
    found = await apis.ask(
        DESCRIBE, DescribeAclsRequest(**{**ANY, "principal_filter": str(ALICE)}), 3
    )
    [resource] = found.resources
    assert [rule.operation for rule in resource.acls] == [Operation.READ, Operation.WRITE]
