from __future__ import annotations

from minibroker.broker.apis.acl_filters import as_filter
from minibroker.broker.metadata.acls import Filter
from minibroker_protocol.messages.delete_acls import DeleteAclsFilter
from tests.broker.apis.test_create_acls import ANY


def test_delete_acls_filter_is_converted_field_by_field() -> None:
    given = DeleteAclsFilter(
        **{**ANY, "resource_name_filter": "n", "principal_filter": "p", "host_filter": "h"}
    )
    assert as_filter(given, 7) == Filter(7, "n", 1, "p", "h", 1, 1)
