"""ListConfigResources (API key 74): the resources that have settings.

Versions 0 to 1, all in the compact encoding.

What changed:
  1  request adds resource_types; response adds resource_type
"""

from __future__ import annotations

from minibroker_protocol.meanings import CONFIG_RESOURCE, Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT8, INT16, INT32, STRING


class ListConfigResourcesRequest(Message, api_key=74, versions="0-1", flexible="0+"):
    resource_types: list[int] = field(array(INT8), versions="1+")


class ConfigResource(Struct):
    resource_name: str = field(STRING, means=CONFIG_RESOURCE)
    resource_type: int = field(INT8, versions="1+", default=16)


class ListConfigResourcesResponse(Message, api_key=74, versions="0-1", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    error_code: int = field(INT16, means=Meaning.ERROR)
    config_resources: list[ConfigResource] = field(array(ConfigResource))
