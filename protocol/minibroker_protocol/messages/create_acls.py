"""CreateAcls (API key 30): add access rules.

Versions 1 to 3, in the compact encoding from 2 on.
"""

from __future__ import annotations

from minibroker_protocol.meanings import ACL_RESOURCE, Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT8, INT16, INT32, NULLABLE_STRING, STRING


class AclCreation(Struct):
    resource_type: int = field(INT8)
    resource_name: str = field(STRING, means=ACL_RESOURCE)
    resource_pattern_type: int = field(INT8, default=3)
    principal: str = field(STRING, means=Meaning.PRINCIPAL)
    host: str = field(STRING, means=Meaning.CLIENT_HOST)
    operation: int = field(INT8)
    permission_type: int = field(INT8)


class CreateAclsRequest(Message, api_key=30, versions="1-3", flexible="2+"):
    creations: list[AclCreation] = field(array(AclCreation))


class AclCreationResult(Struct):
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE)


class CreateAclsResponse(Message, api_key=30, versions="1-3", flexible="2+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="1+")
    results: list[AclCreationResult] = field(array(AclCreationResult))
