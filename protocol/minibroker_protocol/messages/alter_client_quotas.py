"""AlterClientQuotas (API key 49): set and remove quotas.

Versions 0 to 1, in the compact encoding from 1 on.
"""

from __future__ import annotations

from minibroker_protocol.meanings import QUOTA_ENTITY_NAME, Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import BOOLEAN, FLOAT64, INT16, INT32, NULLABLE_STRING, STRING


class EntityData(Struct):
    entity_type: str = field(STRING)
    entity_name: str | None = field(NULLABLE_STRING, means=QUOTA_ENTITY_NAME)


class OpData(Struct):
    key: str = field(STRING)
    value: float = field(FLOAT64)
    remove: bool = field(BOOLEAN)


class AlterClientQuotasRequestEntryData(Struct):
    entity: list[EntityData] = field(array(EntityData), means=Meaning.QUOTA_ENTITY)
    ops: list[OpData] = field(array(OpData))


class AlterClientQuotasRequest(Message, api_key=49, versions="0-1", flexible="1+"):
    entries: list[AlterClientQuotasRequestEntryData] = field(
        array(AlterClientQuotasRequestEntryData)
    )
    validate_only: bool = field(BOOLEAN)


class AlterClientQuotasResponseEntryData(Struct):
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE)
    entity: list[EntityData] = field(array(EntityData), means=Meaning.QUOTA_ENTITY)


class AlterClientQuotasResponse(Message, api_key=49, versions="0-1", flexible="1+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    entries: list[AlterClientQuotasResponseEntryData] = field(
        array(AlterClientQuotasResponseEntryData)
    )
