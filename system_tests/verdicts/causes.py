"""What the scenario itself contributes to a broken rule.

Owns the sentences. It must never influence a verdict. Invariant: every rule has one, so that the
page never accuses a client of what a broker made it do without saying so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_ALWAYS: Final = "Nothing: the client does it with any broker."
_LEADER: Final = (
    "For three seconds each Fetch is answered with an error of its leader. Metadata names the same "
    "leader all the time, and the responses name none, so the client is sent back to it; after a "
    "real election it would get there a few times at most. For as long Produce is answered with "
    "NOT_ENOUGH_REPLICAS, Fetch with KAFKA_STORAGE_ERROR and FindCoordinator with "
    "COORDINATOR_NOT_AVAILABLE, as by a broker with that problem."
)
_REFUSED: Final = (
    "New connections are accepted and reset for seven seconds, as by a load balancer without a "
    "server, and four times for a second and a half. A broker that is down refuses them instead."
)
_REBALANCE: Final = (
    "Another member joins and leaves, and one Heartbeat each is answered with UNKNOWN_MEMBER_ID "
    "and ILLEGAL_GENERATION, as after a session that expired."
)
_CLASSIC: Final = "Nothing: the consumers are members of classic groups."
_STATE: Final = (
    "One Produce is answered with OUT_OF_ORDER_SEQUENCE_NUMBER and not appended, so that the "
    "broker answers later batches of the same epoch alike."
)

SCENARIO_CAUSES: Final[Mapping[str, str]] = {
    "advertised-versions": _ALWAYS,
    "api-versions-fallback": "The broker has the versions of Kafka 2.0.",
    "software-name": _ALWAYS,
    "client-id": _ALWAYS,
    "obeys-throttle": (
        "One Produce and one Fetch are throttled for a second, and the connection is not muted. A "
        "broker mutes it, so the client's request waits there instead."
    ),
    "reconnect-backoff": _REFUSED,
    "reconnect-backoff-grows": _REFUSED,
    "reconnect-backoff-jitter": _REFUSED,
    "connection-reuse": _LEADER,
    "correlation-ids": _ALWAYS,
    "retry-backoff": _LEADER,
    "retry-backoff-grows": _LEADER,
    "retry-backoff-jitter": _LEADER,
    "no-busy-loop": _LEADER,
    "metadata-refresh": _LEADER,
    "coordinator-lookup": (
        "Two OffsetCommits and two Heartbeats are answered with NOT_COORDINATOR, although the "
        "coordinator of the group stays the same."
    ),
    "sequence-numbers": _STATE,
    "producer-reset": _STATE,
    "commit-ownership": _REBALANCE,
    "commit-while-joining": _REBALANCE,
    "heartbeats": _REBALANCE,
    "leaves-group": "Nothing: the client is closed by its application.",
    "rejoins-after-fence": _CLASSIC,
    "reports-assignment": _CLASSIC,
    "share-rejoins-after-fence": _CLASSIC,
    "reopens-share-session": _CLASSIC,
    "acknowledges-acquired": _CLASSIC,
    "acknowledges-in-time": _CLASSIC,
    "committed-position": (
        "The first two OffsetFetches are answered with COORDINATOR_LOAD_IN_PROGRESS, as by a "
        "coordinator that just started."
    ),
    "epoch-validation": _LEADER,
    "fetches-on": _LEADER,
    "reauthentication": "SASL sessions last four seconds, and the client is used for three.",
}
"""What the scenario does, by rule."""
