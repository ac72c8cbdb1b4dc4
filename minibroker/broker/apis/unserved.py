"""Protocols that this broker does not serve, with advice for the client.

Invariant: every text names the protocol and a way to work without it. Kafka answers such requests
with UNSUPPORTED_VERSION or closes the connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from minibroker_protocol.registry import ApiKey


class Unserved(NamedTuple):
    """A protocol that is not served, and what to change in the client."""

    protocol: str
    advice: str

    @property
    def text(self) -> str:
        """The error message of a response."""
        return f"This broker does not serve {self.protocol}: {self.advice}."


CONSUMER_GROUPS: Final = Unserved(
    "the consumer group protocol of KIP-848",
    "set group.protocol=classic in the consumer's configuration",
)
SHARE_GROUPS: Final = Unserved("share groups (KIP-932)", "use a consumer group")
STREAMS_GROUPS: Final = Unserved(
    "the streams group protocol of KIP-1071",
    "set group.protocol=classic in the configuration of Kafka Streams",
)
TOPOLOGY_DESCRIPTIONS: Final = Unserved(
    "descriptions of topologies (KIP-1331)",
    "start it with any name in group.streams.topology.description.plugin.class",
)

COMPARE_VERSIONS: Final = (
    "use a client whose versions of the API overlap with docs/reference/apis.md"
)
"""Advice for an unknown API or an unsupported version."""

_BY_KEY: Final[Mapping[int, Unserved]] = {
    ApiKey.CONSUMER_GROUP_DESCRIBE: CONSUMER_GROUPS,
    ApiKey.SHARE_GROUP_HEARTBEAT: SHARE_GROUPS,
    ApiKey.SHARE_GROUP_DESCRIBE: SHARE_GROUPS,
    ApiKey.SHARE_FETCH: SHARE_GROUPS,
    ApiKey.SHARE_ACKNOWLEDGE: SHARE_GROUPS,
    ApiKey.STREAMS_GROUP_HEARTBEAT: STREAMS_GROUPS,
    ApiKey.STREAMS_GROUP_DESCRIBE: STREAMS_GROUPS,
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: TOPOLOGY_DESCRIPTIONS,
}


def unserved_request(api_key: int | None, problem: str) -> Unserved:
    """The protocol of a rejected request; ``problem`` describes a request of no known protocol.

    ``api_key`` is None if the request's header could not be read.
    """
    known = None if api_key is None else _BY_KEY.get(api_key)
    return known or Unserved(problem, COMPARE_VERSIONS)
