"""DescribeClientQuotas (API key 48): find quotas.

Versions 0 to 1, in the compact encoding from 1 on.
"""

from __future__ import annotations

from minibroker_protocol.meanings import QUOTA_ENTITY_NAME, Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import BOOLEAN, FLOAT64, INT8, INT16, INT32, NULLABLE_STRING, STRING


class ComponentData(Struct):
    entity_type: str = field(STRING)
    match_type: int = field(INT8)
    match: str | None = field(NULLABLE_STRING, means=QUOTA_ENTITY_NAME)


class DescribeClientQuotasRequest(Message, api_key=48, versions="0-1", flexible="1+"):
    components: list[ComponentData] = field(array(ComponentData))
    strict: bool = field(BOOLEAN)


class EntityData(Struct):
    entity_type: str = field(STRING)
    entity_name: str | None = field(NULLABLE_STRING, means=QUOTA_ENTITY_NAME)


class ValueData(Struct):
    key: str = field(STRING)
    value: float = field(FLOAT64)


class EntryData(Struct):
    entity: list[EntityData] = field(array(EntityData), means=Meaning.QUOTA_ENTITY)
    values: list[ValueData] = field(array(ValueData))


class DescribeClientQuotasResponse(Message, api_key=48, versions="0-1", flexible="1+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE)
    entries: list[EntryData] | None = field(array(EntryData), nullable="0+")
