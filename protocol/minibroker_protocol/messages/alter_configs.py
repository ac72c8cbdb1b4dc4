"""AlterConfigs (API key 33): replace all settings of topics or brokers.

Versions 0 to 2, in the compact encoding from 2 on.
"""

from __future__ import annotations

from minibroker_protocol.meanings import CONFIG_RESOURCE, Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import BOOLEAN, INT8, INT16, INT32, NULLABLE_STRING, STRING


class AlterableConfig(Struct):
    name: str = field(STRING, means=Meaning.CONFIG)
    value: str | None = field(NULLABLE_STRING, secret=True)


class AlterConfigsResource(Struct):
    resource_type: int = field(INT8)
    resource_name: str = field(STRING, means=CONFIG_RESOURCE)
    configs: list[AlterableConfig] = field(array(AlterableConfig))


class AlterConfigsRequest(Message, api_key=33, versions="0-2", flexible="2+"):
    resources: list[AlterConfigsResource] = field(array(AlterConfigsResource))
    validate_only: bool = field(BOOLEAN)


class AlterConfigsResourceResponse(Struct):
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE)
    resource_type: int = field(INT8)
    resource_name: str = field(STRING, means=CONFIG_RESOURCE)


class AlterConfigsResponse(Message, api_key=33, versions="0-2", flexible="2+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="1+")
    responses: list[AlterConfigsResourceResponse] = field(array(AlterConfigsResourceResponse))
