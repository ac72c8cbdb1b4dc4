"""IncrementalAlterConfigs (API key 44): change single settings.

Versions 0 to 1, in the compact encoding from 1 on.
"""

from __future__ import annotations

from minibroker_protocol.meanings import CONFIG_RESOURCE, Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import BOOLEAN, INT8, INT16, INT32, NULLABLE_STRING, STRING


class AlterableConfig(Struct):
    name: str = field(STRING, means=Meaning.CONFIG)
    config_operation: int = field(INT8)
    value: str | None = field(NULLABLE_STRING, secret=True)


class AlterConfigsResource(Struct):
    resource_type: int = field(INT8)
    resource_name: str = field(STRING, means=CONFIG_RESOURCE)
    configs: list[AlterableConfig] = field(array(AlterableConfig))


class IncrementalAlterConfigsRequest(Message, api_key=44, versions="0-1", flexible="1+"):
    resources: list[AlterConfigsResource] = field(array(AlterConfigsResource))
    validate_only: bool = field(BOOLEAN)


class AlterConfigsResourceResponse(Struct):
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE)
    resource_type: int = field(INT8)
    resource_name: str = field(STRING, means=CONFIG_RESOURCE)


class IncrementalAlterConfigsResponse(Message, api_key=44, versions="0-1", flexible="1+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    responses: list[AlterConfigsResourceResponse] = field(array(AlterConfigsResourceResponse))
