"""DeleteAcls: an ACL that two filters match is in both results; see also ``test_create_acls``."""

from __future__ import annotations

from minibroker.broker.apis.delete_acls import API
from minibroker.broker.security.acl import Operation, Resource
from minibroker_protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from tests.broker.apis.authorization.callers import SETTINGS, grant
from tests.broker.apis.conftest import ApisMaker
from tests.broker.apis.test_create_acls import ANY


async def test_acl_matching_two_filters_is_listed_for_both(make_apis: ApisMaker) -> None:
    apis = await make_apis(*SETTINGS)
    await grant(apis, Resource.GROUP, "g", Operation.READ)
    filters = [DeleteAclsFilter(**ANY), DeleteAclsFilter(**{**ANY, "resource_type_filter": 3})]
    gone = await apis.ask(API, DeleteAclsRequest(filters=filters), 3)
    assert [len(result.matching_acls) for result in gone.filter_results] == [1, 1]
    assert not apis.controller.at_processor.acls
