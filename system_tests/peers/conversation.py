"""The same conversation with two brokers, and the comparison of their responses.

Owns a connection to each, the parts of a response that a broker may choose (its own names, times,
and error texts), and how the rest is compared; the requests belong to the conversations. Invariant:
a difference that a client could act on is reported, with the request's name, and a broker that
disconnects has responded with that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Final, Protocol

from minibroker_protocol.errors import ErrorCode, ProtocolError
from minibroker_protocol.messages.alter_client_quotas import AlterClientQuotasRequest
from minibroker_protocol.messages.alter_configs import AlterConfigsRequest
from minibroker_protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
)
from minibroker_protocol.messages.create_acls import CreateAclsRequest
from minibroker_protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from minibroker_protocol.messages.create_partitions import CreatePartitionsRequest
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.delete_acls import DeleteAclsRequest
from minibroker_protocol.messages.delete_topics import DeleteTopicsRequest
from minibroker_protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from minibroker_protocol.messages.describe_groups import DescribeGroupsRequest
from minibroker_protocol.messages.describe_transactions import DescribeTransactionsRequest
from minibroker_protocol.messages.end_txn import EndTxnRequest
from minibroker_protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from minibroker_protocol.messages.init_producer_id import InitProducerIdRequest
from minibroker_protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from minibroker_protocol.records import iter_batches
from minibroker_protocol.schema import Message, Struct
from system_tests.connections.dialling import Client
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.waiting import wait_until

DISCONNECTED: Final = "disconnected"

BROKER_SPECIFIC: Final = frozenset(
    {
        "throttle_time_ms",
        "member_id",
        "leader",
        "client_host",
        "error_message",
        "topic_id",
        "cluster_id",
        "host",
        "port",
        "leader_epoch",
    }
    | {"log_dir", "total_bytes", "usable_bytes", "partition_size", "producer_id", "documentation"}
    | {
        "batch_index_error_message",
        "log_append_time_ms",
        "transaction_start_time_ms",
        "aborted_transactions",
        "controller_id",
        "unknown_tagged_fields",
        "current_leader",
    }
    | {
        "last_timestamp",
        "api_keys",
        "supported_features",
        "finalized_features",
        "finalized_features_epoch",
    }
    | {"client_instance_id", "subscription_id"}
    | {"token_id", "hmac", "issue_timestamp", "expiry_timestamp", "max_timestamp"}
    | {"issue_timestamp_ms", "expiry_timestamp_ms", "max_timestamp_ms"}
)
"""Fields that each broker fills differently, or that are texts. What ApiVersions lists is compared
by itself.
"""

CONFIGS_OF_ONE_BROKER: Final = frozenset(
    {"local.retention.bytes", "local.retention.ms", "remote.log.copy.disable"}
    | {"max.decompressed.message.bytes"}
    | {"remote.copy.lag.bytes", "remote.copy.lag.ms"}
    | {"remote.log.delete.on.disable", "remote.storage.enable", "min.insync.replicas"}
    | {
        "log.retention.hours",
        "log.roll.hours",
        "log.flush.scheduler.interval.ms",
        "log.preallocate",
    }
)
"""Topic configs that only Kafka has or that its storage tool set for all topics, and broker configs
that only one of the two lists as synonyms of topic configs.
"""

TRANSACTIONAL_BIT: Final = 1 << 4
CONTROL_BIT: Final = 1 << 5
"""Attributes of batches of transactions, and of those that are transaction markers."""

RETRIABLE: Final = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE}
    | {ErrorCode.NOT_COORDINATOR}
)
"""Errors that Kafka returns until the internal topic of a coordinator exists."""


MARKER_TOPIC: Final = "last-change"
"""A topic whose config is changed after each change, to see when that is applied."""

CHANGES: Final = (
    CreateTopicsRequest,
    CreatePartitionsRequest,
    DeleteTopicsRequest,
    AlterConfigsRequest,
    IncrementalAlterConfigsRequest,
    AlterClientQuotasRequest,
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    DeleteAclsRequest,
    CreateDelegationTokenRequest,
    RenewDelegationTokenRequest,
    ExpireDelegationTokenRequest,
)


_UNUSED_VALUES: Final = count(1000)
"""Values of the marker's config. Each is used once, because a value that an earlier conversation
set would prove nothing.
"""


class SendRequest(Protocol):
    """Sends a request in a version, stores the response under a name, and returns it."""

    answers: dict[str, Any]

    def __call__(self, name: str, request: Message, version: int) -> Any: ...

    def until(
        self, is_wanted: Callable[[Any], bool], name: str, request: Message, version: int
    ) -> Any:
        """Send the request until the response is the wanted one, which alone is stored."""


Conversation = Callable[[SendRequest], None]


class ConversationRun:
    """One conversation with one broker, as the user of ``connect``; by default one with all
    rights, which the check of applied changes always needs.
    """

    def __init__(self, broker: RunningBroker, connect: Callable[[], Client] | None = None) -> None:
        self._admin = Client(broker.address, client_id="peers")
        self._connect = connect or partial(Client, broker.address, client_id="peers")
        self._client = self._connect()
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[int, int]] = []
        """API key and version of each request."""

    def __call__(self, name: str, request: Message, version: int) -> Any:
        assert name not in self.answers, f"two requests have the name {name}"
        key = type(request).__api_key__
        assert key is not None
        self.asked.append((key, version))
        response = self._send(request, version)
        self.answers[name] = comparable(response)
        if isinstance(request, CHANGES) and not getattr(request, "validate_only", False):
            self._wait_until_applied()
        if isinstance(request, EndTxnRequest | InitProducerIdRequest) and request.transactional_id:
            wait_until(partial(self._has_ended, request.transactional_id), "written markers")
        if isinstance(request, CreateTopicsRequest) and not request.validate_only:
            for topic in response.topics:
                if topic.error_code == ErrorCode.NONE:
                    wait_until(
                        partial(self._has_leader, topic.name), f"{topic.name} to have leaders"
                    )
        return response

    def until(
        self, is_wanted: Callable[[Any], bool], name: str, request: Message, version: int
    ) -> Any:
        def wanted() -> Any:
            response = self._send(request, version)
            return response if is_wanted(response) else None

        response = wait_until(wanted, name)
        self.answers[name] = comparable(response)
        return response

    def _wait_until_applied(self) -> None:
        """Wait until the broker has applied all changes: Kafka's controller responds earlier.

        A broker applies changes in order, so a marker that is visible shows that all are.
        """
        text = str(next(_UNUSED_VALUES))
        change = AlterableConfig(name="segment.index.bytes", config_operation=0, value=text)
        resource = AlterConfigsResource(
            resource_type=2, resource_name=MARKER_TOPIC, configs=[change]
        )
        self._admin.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
        wanted = DescribeConfigsResource(
            resource_type=2, resource_name=MARKER_TOPIC, configuration_keys=["segment.index.bytes"]
        )

        def is_applied() -> bool:
            (result,) = self._admin.ask(DescribeConfigsRequest(resources=[wanted]), 4).results
            return bool(result.configs) and result.configs[0].value == text

        wait_until(is_applied, "the last change to be applied", pause_s=0.002)

    def _has_ended(self, transactional_id: str) -> bool:
        """Whether no markers are to be written; brokers write them after they have responded."""
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        (found,) = self._admin.ask(request, 0).transaction_states
        return not found.transaction_state.startswith("Prepare")

    def _send(self, request: Message, version: int) -> Any:
        try:
            response = self._client.ask(request, version)
        except (ConnectionError, ProtocolError, AssertionError):
            self._client.close()
            self._client = self._connect()
            return DISCONNECTED
        if getattr(response, "error_code", 0) in RETRIABLE:
            return wait_until(lambda: self._retry(request, version), "a loaded coordinator")
        return response

    def _retry(self, request: Message, version: int) -> Any:
        response = self._client.ask(request, version)
        return None if response.error_code in RETRIABLE else response

    def _has_leader(self, topic: str) -> bool:
        """Whether the topic has leaders; Kafka's controller responds before its broker knows it."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        (found,) = self._admin.ask(request, 12).topics
        parts = [
            ListOffsetsPartition(partition_index=one.partition_index, timestamp=-1)
            for one in found.partitions
        ]
        if not parts:
            return False
        topics = [ListOffsetsTopic(name=topic, partitions=parts)]
        (result,) = self._admin.ask(ListOffsetsRequest(replica_id=-1, topics=topics), 7).topics
        return not any(one.error_code for one in result.partitions)

    def end(self) -> None:
        self._client.close()
        self._admin.close()


def comparable(value: Any) -> Any:
    """The comparable part of a response; lists are sorted, because brokers use maps."""
    if isinstance(value, Struct):
        names = [
            field.name for field in type(value).__fields__ if field.name not in BROKER_SPECIFIC
        ]
        return {name: _comparable_field(name, getattr(value, name)) for name in names}
    if isinstance(value, list | tuple):
        return _comparable_list([comparable(each) for each in value])
    return value if value is None or isinstance(value, bool | int | float | str) else bytes(value)


def _comparable_list(values: list[Any]) -> Any:
    """Return a dict by name if each value has one, so that extra values of one broker are
    reported by name.
    """
    known = [
        each
        for each in values
        if not isinstance(each, dict) or each.get("name") not in CONFIGS_OF_ONE_BROKER
    ]
    if len(known) < len(values):
        return _comparable_list(known)
    by_name = {each["name"]: each for each in values if isinstance(each, dict) and "name" in each}
    return by_name if len(by_name) == len(values) else sorted(values, key=repr)


def _comparable_field(name: str, value: Any) -> Any:
    if name == "session_id":  # Chosen by the broker; 0 is none.
        return bool(value)
    if name == "records" and value is not None:
        return _comparable_records(bytes(value))
    return ErrorCode(value).name if name.endswith("error_code") else comparable(value)


def _comparable_records(data: bytes) -> bytes:
    """Batches without the checksums and times of transaction markers, which brokers write, and
    without producer ids of transactions, which they choose.
    """
    parts, end = [], 0
    for start, header in iter_batches(data):
        end = start + header.size
        batch = data[start:end]
        if header.attributes & CONTROL_BIT:
            batch = batch[:17] + batch[21:27] + batch[51:]
        elif header.attributes & TRANSACTIONAL_BIT:
            batch = batch[:17] + batch[21:43] + batch[51:]
        parts.append(batch)
    return b"".join([*parts, data[end:]])


def prepare(broker: RunningBroker) -> None:
    """Create what conversations need, and wait until the coordinator has started, for which
    Kafka creates a topic at the first request.
    """
    with Client(broker.address) as client:

        def has_started() -> bool:
            client.ask(FindCoordinatorRequest(key="g", key_type=0), 3)
            (group,) = client.ask(DescribeGroupsRequest(groups=["g"]), 5).groups
            return bool(group.error_code == ErrorCode.NONE)

        wait_until(has_started, "a coordinator")
        last = CreatableTopic(name=MARKER_TOPIC, num_partitions=1, replication_factor=1)
        client.ask(CreateTopicsRequest(topics=[last], timeout_ms=10_000), 7)


def run_conversation(
    broker: RunningBroker,
    conversation: Conversation,
    connect: Callable[[], Client] | None = None,
) -> ConversationRun:
    """Send all requests of a conversation to a broker; the run has its responses by name."""
    run = ConversationRun(broker, connect)
    try:
        conversation(run)
    finally:
        run.end()
    return run


def differences(one: Any, other: Any, at: str = "") -> list[str]:
    """The differences between two responses, one line each."""
    if isinstance(one, dict) and isinstance(other, dict):
        return [
            line
            for key in {**one, **other}
            for line in differences(one.get(key), other.get(key), f"{at}.{key}")
        ]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [line for n, pair in pairs for line in differences(*pair, f"{at}[{n}]")]
    return [] if one == other else [f"{at}: {one!r} / {other!r}"]
