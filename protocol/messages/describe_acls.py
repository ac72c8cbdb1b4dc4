"""DescribeAcls (API key 29): find access rules.

Versions 1 to 3, in the compact encoding from 2 on.
"""

from __future__ import annotations

from protocol.schema import Message, Struct, array, field
from protocol.types import INT8, INT16, INT32, NULLABLE_STRING, STRING


class DescribeAclsRequest(Message, api_key=29, versions="1-3", flexible="2+"):
    resource_type_filter: int = field(INT8)
    resource_name_filter: str | None = field(NULLABLE_STRING)
    pattern_type_filter: int = field(INT8, default=3)
    principal_filter: str | None = field(NULLABLE_STRING)
    host_filter: str | None = field(NULLABLE_STRING)
    operation: int = field(INT8)
    permission_type: int = field(INT8)


class AclDescription(Struct):
    principal: str = field(STRING)
    host: str = field(STRING)
    operation: int = field(INT8)
    permission_type: int = field(INT8)


class DescribeAclsResource(Struct):
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    pattern_type: int = field(INT8, default=3)
    acls: list[AclDescription] = field(array(AclDescription))


class DescribeAclsResponse(Message, api_key=29, versions="1-3", flexible="2+"):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(NULLABLE_STRING)
    resources: list[DescribeAclsResource] = field(array(DescribeAclsResource))
