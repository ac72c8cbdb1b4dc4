"""Every API in every version: a request without content, and one with an unnamed part in each list.

Owns how such requests are made from the schemas. Invariant: a request changes nothing that another
conversation relies on, and asks for nothing that other conversations may have left behind.
"""

from __future__ import annotations

from typing import Any, Final

from minibroker.broker.apis.registry import APIS
from minibroker_protocol import registry
from minibroker_protocol.messages.metadata import MetadataRequestTopic
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Array, Message, Struct
from system_tests.peers.conversation import SendRequest
from system_tests.peers.topics import TIMEOUT_MS, create, topic

TOPIC: Final = "versions"

OTHER_BROKERS: Final = frozenset(
    {
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
    }
)
"""Requests between brokers, which no Kafka 4 has."""

NOT_LISTED: Final = frozenset({ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY})
"""Kafka serves them only with a plug-in that receives the metrics, as in `test_same_telemetry`."""

SAFE: Final[dict[ApiKey, dict[str, Any]]] = {
    ApiKey.PRODUCE: {"acks": 1},  # With 0 there is no response.
    ApiKey.FETCH: {"replica_id": -1, "max_wait_ms": 0, "session_epoch": -1},
    ApiKey.LIST_OFFSETS: {"replica_id": -1},
    ApiKey.METADATA: {
        "topics": [MetadataRequestTopic(name=TOPIC)],
        "allow_auto_topic_creation": False,
    },
    ApiKey.OFFSET_FOR_LEADER_EPOCH: {"replica_id": -1},
    ApiKey.INIT_PRODUCER_ID: {"transaction_timeout_ms": 1000},
    ApiKey.LIST_TRANSACTIONS: {"producer_id_filters": [2**40]},
    ApiKey.DESCRIBE_LOG_DIRS: {"topics": []},
    ApiKey.ELECT_LEADERS: {"topic_partitions": []},
    ApiKey.LIST_PARTITION_REASSIGNMENTS: {"topics": []},
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: {"users": []},
    ApiKey.DESCRIBE_ACLS: {
        "resource_type_filter": 3,
        "pattern_type_filter": 3,
        "operation": 1,
        "permission_type": 1,
    },
    ApiKey.CREATE_PARTITIONS: {"timeout_ms": TIMEOUT_MS},
    ApiKey.CREATE_TOPICS: {"timeout_ms": TIMEOUT_MS},
    ApiKey.DELETE_TOPICS: {"timeout_ms": TIMEOUT_MS},
    ApiKey.DELETE_RECORDS: {"timeout_ms": TIMEOUT_MS},
    ApiKey.UNREGISTER_BROKER: {"broker_id": 99},
    ApiKey.LIST_CONFIG_RESOURCES: {"resource_types": [4]},
}
"""Fields that are not left empty."""

FILLED_ELSEWHERE: Final = frozenset(
    {ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.LIST_GROUPS, ApiKey.DESCRIBE_CLIENT_QUOTAS}
    | {ApiKey.ADD_PARTITIONS_TO_TXN}
)
"""APIs whose empty requests ask for everything, and one whose empty request Kafka never answers."""


def served_keys() -> list[ApiKey]:
    """The APIs of clients that both brokers serve."""
    return [key for key in map(ApiKey, sorted(APIS)) if key not in OTHER_BROKERS | NOT_LISTED]


def versions_of(key: ApiKey) -> range:
    """The versions that are served; the old ones of Produce are only listed."""
    api = APIS[key]
    low = api.versions[0] if api.served_from is None else api.served_from
    return range(low, api.versions[1] + 1)


def empty(key: ApiKey) -> Message:
    """A request with nothing but the values of `SAFE`."""
    return registry.schema(key).request(**SAFE.get(key, {}))


def with_parts(key: ApiKey) -> Message | None:
    """A request with one empty part in each list; None if it has no lists of parts."""
    request = empty(key)
    return request if _fill(request) else None


def _fill(struct: Struct) -> bool:
    is_filled = False
    for field in type(struct).__fields__:
        part = field.kind.element if isinstance(field.kind, Array) else None
        if not isinstance(part, type) or getattr(struct, field.name):
            continue
        made = part()
        _fill(made)
        setattr(struct, field.name, [made])
        is_filled = True
    return is_filled


def without_content(ask: SendRequest) -> None:
    ask("made", create(topic(TOPIC)), 7)
    for key in served_keys():
        if key in FILLED_ELSEWHERE:
            continue
        for version in versions_of(key):
            ask(f"{key.name} {version}", empty(key), version)


def with_unnamed_parts(ask: SendRequest) -> None:
    for key in served_keys():
        request = with_parts(key)
        if request is not None:
            for version in versions_of(key):
                ask(f"{key.name} {version}", request, version)


CONVERSATIONS: Final = (without_content, with_unnamed_parts)
