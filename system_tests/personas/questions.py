"""Requests to a real broker, and the facts that its responses are.

Owns the requests and what is read from the responses. It must never know which broker answers.
Invariant: each request has a version that every broker since Kafka 0.11 has, or is sent only
if the broker lists the version; what waits for a quota comes last, because it throttles.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from minibroker.broker.personas.persona import ALL, DELAYED, MUTED, NONE, OWN
from minibroker.broker.settings import Settings
from minibroker_protocol.compiler import decode
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from minibroker_protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from minibroker_protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.wire import decode_response_header
from system_tests.connections.dialling import Client
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.waiting import wait_until

METADATA: Final = 4
PRODUCE: Final = 3
"""Versions that every broker since Kafka 0.11 has."""

UNKNOWN_VERSION: Final = 99
UNKNOWN_KEY: Final = 999
BROKER: Final = 4
"""Type of a broker's config resource."""

QUOTA_BYTES_PER_S: Final = 100_000
QUOTA_SETTINGS: Final = {"quota.producer.default": str(QUOTA_BYTES_PER_S)}
"""The quota of brokers that AlterClientQuotas does not exist in."""
LARGE: Final = 900_000
"""Bytes of a record, of which two exceed the quota of ten seconds."""
THROTTLED: Final = "throttled"
THROTTLE_MIN_S: Final = 1.0
"""A throttle that no pause of a process looks like."""

DEFAULTS: Final = (
    *("message.max.bytes", "group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    *("offsets.retention.minutes", "offset.metadata.max.bytes", "auto.create.topics.enable"),
    *("transaction.max.timeout.ms", "transactional.id.expiration.ms", "connections.max.idle.ms"),
)
"""Settings whose effects clients see."""


class Produced(NamedTuple):
    """The error of a batch, and the throttle time."""

    error_code: int
    throttle_s: float


def facts(broker: RunningBroker) -> dict[str, Any]:
    """All facts about a broker."""
    versions = ask_versions(broker)
    with Client(broker.address) as client:
        node_id = client.ask(MetadataRequest(topics=[]), METADATA).brokers[0].node_id
        defaults = ask_defaults(client, versions, node_id)
        behaviour: dict[str, Any] = ask_answers(client)
    has_quotas = ApiKey.ALTER_CLIENT_QUOTAS in versions
    behaviour["throttled"] = ask_throttled(broker, has_quotas=has_quotas)
    for key in (ApiKey.METADATA, ApiKey.FETCH, UNKNOWN_KEY):
        assert is_disconnected(broker, key, versions.get(key, (0, 0))[1] + 1), key
    return {
        "versions": {str(key): each for key, each in sorted(versions.items())},
        "features": ask_features(broker, versions[ApiKey.API_VERSIONS][1]),
        "behaviour": dict(sorted(behaviour.items())),
        "defaults": defaults,
    }


def ask_answers(client: Client) -> dict[str, Any]:
    """The answers that do not follow from version numbers, without throttling."""
    found = client.ask(MetadataRequest(topics=[]), METADATA)
    return {
        "cluster_id_prefix": found.cluster_id[: found.cluster_id.rfind(".") + 1],
        "new_topic_error": ask_new_topic(client),
        "unknown_api_versions_lists": ask_unknown_version(client),
        "unknown_producer_error": ask_unknown_producer(client),
    }


def is_disconnected(broker: RunningBroker, key: int, version: int) -> bool:
    """Whether the broker closes the connection of a client that requests this."""
    with Client(broker.address) as client:
        try:
            client.exchange(struct.pack(">hhih", key, version, 1, -1) + bytes(8))
        except ConnectionResetError:
            return True
    return False


def ask_versions(broker: RunningBroker) -> dict[int, tuple[int, int]]:
    """What ApiVersions lists, by key."""
    with Client(broker.address) as client:
        response = client.ask(ApiVersionsRequest(), 0)
    return {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}


def ask_features(broker: RunningBroker, version: int) -> dict[str, Any] | None:
    """Supported and finalized features; None if the response has none."""
    request = ApiVersionsRequest(client_software_name="personas", client_software_version="1")
    with Client(broker.address) as client:
        response = client.ask(request, version)
    if response.finalized_features_epoch < 0 and not response.supported_features:
        return None
    return {
        "supported": {
            each.name: [each.min_version, each.max_version] for each in response.supported_features
        },
        "finalized": {each.name: each.max_version_level for each in response.finalized_features},
        "epoch": 0,  # Counts changes; that of a KRaft node is an offset, different at each start.
    }


def unknown_version_response(client: Client) -> ApiVersionsResponse:
    """The response to a version of ApiVersions that no broker has; it is one of version 0."""
    # The header of the newest versions ends with tagged fields; then come two empty texts.
    frame = struct.pack(">hhih", ApiKey.API_VERSIONS, UNKNOWN_VERSION, 1, -1) + b"\0" + b"\1\1\0"
    body = client.exchange(frame)
    _, at = decode_response_header(body, ApiKey.API_VERSIONS, 0)
    return decode(ApiVersionsResponse, 0, body, at)


def ask_unknown_version(client: Client) -> str:
    """What the response to an unknown version of ApiVersions lists."""
    response = unknown_version_response(client)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    keys = [each.api_key for each in response.api_keys]
    return NONE if not keys else OWN if keys == [ApiKey.API_VERSIONS] else ALL


def ask_new_topic(client: Client) -> int:
    """The error of a topic in the response to the request that creates it."""
    error = _metadata(client, "new")
    wait_until(lambda: not _metadata(client, "new"), "a new topic")
    return error


def _metadata(client: Client, topic: str) -> int:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True
    )
    (found,) = client.ask(request, METADATA).topics
    return int(found.error_code)


def ask_unknown_producer(client: Client) -> int:
    """The error of a batch of a producer that the broker has never seen, in the middle."""
    batch = build_batch([Record(value=b"x")], producer_id=4711, producer_epoch=0, base_sequence=5)
    return _when_ready(lambda: _produce(client, batch).error_code)


def _when_ready(produce: Callable[[], int]) -> int:
    """The error that remains when the partition has a leader."""
    not_ready = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return wait_until(lambda: [code for code in [produce()] if code not in not_ready], "a leader")[
        0
    ]


def _produce(client: Client, batch: bytes) -> Produced:
    data = [PartitionProduceData(index=0, records=batch)]
    request = ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name="new", partition_data=data)]
    )
    response = client.ask(request, PRODUCE)
    code = response.responses[0].partition_responses[0].error_code
    return Produced(int(code), response.throttle_time_ms / 1000)


def ask_defaults(
    client: Client, versions: dict[int, tuple[int, int]], node_id: int
) -> dict[str, str]:
    """Defaults that differ from those of the newest Kafka."""
    describe = _described if versions[ApiKey.DESCRIBE_CONFIGS][1] >= 1 else _described_in_version_0
    values = describe(client, str(node_id))
    settings = Settings.from_sources(profile="kafka")
    newest = {name: settings.text(name) for name in DEFAULTS}
    return {
        name: values[name] for name in DEFAULTS if values.get(name, newest[name]) != newest[name]
    }


def _described(client: Client, node_id: str) -> dict[str, str]:
    resource = DescribeConfigsResource(
        resource_type=BROKER, resource_name=node_id, configuration_keys=list(DEFAULTS)
    )
    (result,) = client.ask(DescribeConfigsRequest(resources=[resource]), 1).results
    return {each.name: each.value for each in result.configs}


def _described_in_version_0(client: Client, node_id: str) -> dict[str, str]:
    """The values from a version that the schemas of the newest Kafka do not have."""
    frame = struct.pack(">hhih", ApiKey.DESCRIBE_CONFIGS, 0, 1, -1) + struct.pack(">ib", 1, BROKER)
    frame += _string(node_id) + struct.pack(">i", len(DEFAULTS)) + b"".join(map(_string, DEFAULTS))
    body = memoryview(client.exchange(frame))
    at = struct.calcsize(">iiihhb")  # Correlation id, throttle time, count, error, no text, type.
    _, at = _read_string(body, at)
    (count,) = struct.unpack_from(">i", body, at)
    at += 4
    values = {}
    for _ in range(count):
        name, at = _read_string(body, at)
        values[name], at = _read_string(body, at)
        at += struct.calcsize(">???")  # Read-only, default, sensitive.
    return values


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _read_string(body: memoryview, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", body, at)
    end = at + 2 + max(length, 0)
    return str(body[at + 2 : end], "utf-8"), end


def ask_throttled(broker: RunningBroker, *, has_quotas: bool) -> str:
    """Whether the response to a producer above its quota is late, or its next request is."""
    batch = build_batch([Record(value=b"x" * LARGE)])
    with Client(broker.address, client_id=THROTTLED) as client:
        if has_quotas:
            _set_quota(client)
        found = wait_until(lambda: _throttled_after(client, batch), "a throttled request")
    throttle_s, waited_s = found or (0.0, 0.0)
    return DELAYED if waited_s > throttle_s / 2 else MUTED


def _throttled_after(client: Client, batch: bytes) -> tuple[float, float] | None:
    started = time.monotonic()
    throttle_s = _produce(client, batch).throttle_s
    waited_s = time.monotonic() - started
    return (throttle_s, waited_s) if throttle_s > THROTTLE_MIN_S else None


def _set_quota(client: Client) -> None:
    entry = AlterClientQuotasRequestEntryData(
        entity=[EntityData(entity_type="client-id", entity_name=THROTTLED)],
        ops=[OpData(key="producer_byte_rate", value=float(QUOTA_BYTES_PER_S))],
    )
    response = client.ask(AlterClientQuotasRequest(entries=[entry]), 0)
    assert [each.error_code for each in response.entries] == [0], response
