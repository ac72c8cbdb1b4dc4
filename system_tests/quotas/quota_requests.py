"""Requests of a size."""

from __future__ import annotations

from minibroker_protocol.compiler import encode
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.wire import RequestHeader, encode_request_header

VERSION = 9


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
