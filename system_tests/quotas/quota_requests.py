"""Quotas set over a connection, and requests of a size.

Owns the messages; the expectations belong to the tests. Invariant: quotas are in force in every
process when `set_quota` returns, because the broker responds only then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minibroker_protocol.compiler import encode
from minibroker_protocol.headers import RequestHeader, encode_request_header
from minibroker_protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.registry import ApiKey
from system_tests.connections.dialling import Client

VERSION = 9

Entity = Mapping[str, str | None]


def set_quota(client: Client, entity: Entity, **quotas: float) -> None:
    """Gives an entity, by type and name, quotas."""
    set_quotas(client, [(entity, quotas)])


def set_quotas(client: Client, given: Sequence[tuple[Entity, Mapping[str, float]]]) -> None:
    """Gives some entities theirs at once."""
    entries = [
        AlterClientQuotasRequestEntryData(
            entity=[
                EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()
            ],
            ops=[OpData(key=key, value=value) for key, value in quotas.items()],
        )
        for entity, quotas in given
    ]
    response = client.ask(AlterClientQuotasRequest(entries=entries, validate_only=False), 1)
    assert [each.error_code for each in response.entries] == [0] * len(entries), response


def produce_of(size: int, client_id: str) -> ProduceRequest:
    """Return a Produce request for a missing topic, whose header and body have this size."""
    header = encode_request_header(RequestHeader(ApiKey.PRODUCE, VERSION, 1, client_id))

    def made(room: int) -> ProduceRequest:
        data = [PartitionProduceData(index=0, records=bytes(room))]
        return ProduceRequest(
            acks=1, topic_data=[TopicProduceData(name="none", partition_data=data)]
        )

    room = size
    while len(header) + len(encode(made(room), VERSION)) > size:
        room -= 1
    return made(room)
