"""StreamsGroupTopologyDescriptionUpdate (API key 93): the topology of a streams group for people.

Version 0, in the compact encoding. A member sends it when a heartbeat asks for it (KIP-1331).
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.streams_group_describe import TopologyDescription
from minibroker_protocol.schema import Message, field
from minibroker_protocol.types import INT16, INT32, NULLABLE_STRING, STRING


class StreamsGroupTopologyDescriptionUpdateRequest(
    Message, api_key=93, versions="0", flexible="0+"
):
    group_id: str = field(STRING, means=Meaning.GROUP)
    member_id: str = field(STRING, means=Meaning.MEMBER)
    topology_epoch: int = field(INT32)
    topology_description: TopologyDescription = field(TopologyDescription)


class StreamsGroupTopologyDescriptionUpdateResponse(
    Message, api_key=93, versions="0", flexible="0+"
):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE, default=None)
