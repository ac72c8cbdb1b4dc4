"""DescribeConfigs (API key 32): read settings of topics, brokers and more.

Versions 1 to 4, in the compact encoding from 4 on.

What changed:
  3  request adds include_documentation; response adds config_type, documentation
"""

from __future__ import annotations

from minibroker_protocol.meanings import CONFIG_RESOURCE, Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import BOOLEAN, INT8, INT16, INT32, NULLABLE_STRING, STRING


class DescribeConfigsResource(Struct):
    resource_type: int = field(INT8)
    resource_name: str = field(STRING, means=CONFIG_RESOURCE)
    configuration_keys: list[str] | None = field(array(STRING), means=Meaning.CONFIG, nullable="0+")


class DescribeConfigsRequest(Message, api_key=32, versions="1-4", flexible="4+"):
    resources: list[DescribeConfigsResource] = field(array(DescribeConfigsResource))
    include_synonyms: bool = field(BOOLEAN)
    include_documentation: bool = field(BOOLEAN, versions="3+")


class DescribeConfigsSynonym(Struct):
    name: str = field(STRING, means=Meaning.CONFIG)
    value: str | None = field(NULLABLE_STRING)
    source: int = field(INT8)


class DescribeConfigsResourceResult(Struct):
    name: str = field(STRING, means=Meaning.CONFIG)
    value: str | None = field(NULLABLE_STRING)
    read_only: bool = field(BOOLEAN)
    config_source: int = field(INT8, default=-1)
    is_sensitive: bool = field(BOOLEAN)
    synonyms: list[DescribeConfigsSynonym] = field(array(DescribeConfigsSynonym))
    config_type: int = field(INT8, versions="3+")
    documentation: str | None = field(NULLABLE_STRING, versions="3+")


class DescribeConfigsResult(Struct):
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE)
    resource_type: int = field(INT8)
    resource_name: str = field(STRING, means=CONFIG_RESOURCE)
    configs: list[DescribeConfigsResourceResult] = field(array(DescribeConfigsResourceResult))


class DescribeConfigsResponse(Message, api_key=32, versions="1-4", flexible="4+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="2+")
    results: list[DescribeConfigsResult] = field(array(DescribeConfigsResult))
