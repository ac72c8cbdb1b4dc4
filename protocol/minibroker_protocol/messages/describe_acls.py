"""DescribeAcls (API key 29): find access rules.

Versions 1 to 3, in the compact encoding from 2 on.
"""

from __future__ import annotations

from minibroker_protocol.meanings import ACL_RESOURCE, ACL_RESOURCE_FILTER, Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT8, INT16, INT32, NULLABLE_STRING, STRING


class DescribeAclsRequest(Message, api_key=29, versions="1-3", flexible="2+"):
    resource_type_filter: int = field(INT8)
    resource_name_filter: str | None = field(NULLABLE_STRING, means=ACL_RESOURCE_FILTER)
    pattern_type_filter: int = field(INT8, default=3)
    principal_filter: str | None = field(NULLABLE_STRING, means=Meaning.PRINCIPAL)
    host_filter: str | None = field(NULLABLE_STRING, means=Meaning.CLIENT_HOST)
    operation: int = field(INT8)
    permission_type: int = field(INT8)


class AclDescription(Struct):
    principal: str = field(STRING, means=Meaning.PRINCIPAL)
    host: str = field(STRING, means=Meaning.CLIENT_HOST)
    operation: int = field(INT8)
    permission_type: int = field(INT8)


class DescribeAclsResource(Struct):
    resource_type: int = field(INT8)
    resource_name: str = field(STRING, means=ACL_RESOURCE)
    pattern_type: int = field(INT8, default=3)
    acls: list[AclDescription] = field(array(AclDescription))


class DescribeAclsResponse(Message, api_key=29, versions="1-3", flexible="2+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="1+")
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE)
    resources: list[DescribeAclsResource] = field(array(DescribeAclsResource))
