"""A synchronous client of a cluster: sends each request to the broker that must handle it.

Owns the connections, the addresses of brokers from metadata, and the lookup of leaders and
coordinators. It must never know a command. Invariant: a request that is not idempotent is sent at
most once. Kafka's ``NetworkClient`` and ``Metadata`` do this asynchronously.
"""

from __future__ import annotations

import time
from typing import Final, Self, TypeVar

from minibroker.broker.settings.setting import HostPort
from minibroker.client.connection import (
    DEFAULT_BOOTSTRAP,
    PLAINTEXT,
    REQUEST_TIMEOUT_S,
    BrokerConnection,
    ClientSecurity,
    parse_bootstrap,
)
from minibroker.client.errors import (
    BrokerError,
    BrokerUnreachable,
    ConnectionDropped,
    NotConnected,
    Remedy,
    check,
)
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from minibroker_protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from minibroker_protocol.messages.list_groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from minibroker_protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Message

RETRY_BACKOFF_S: Final = 0.1
TOPIC: Final = 2
BROKER: Final = 4
CLIENT_METRICS: Final = 16
GROUP: Final = 32
RESOURCE_NAMES: Final = {
    TOPIC: "topic",
    BROKER: "broker",
    CLIENT_METRICS: "client-metric",
    GROUP: "group",
}
"""Types of resources, by Kafka's numbers."""

NOT_IDEMPOTENT: Final = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.DELETE_GROUPS,
    }
)
"""Requests that are not retried, because the broker may have handled a request without a response.
"""

RETRIABLE: Final = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Errors of metadata and coordinator lookups that pass."""

R = TypeVar("R", bound=Message)


class KafkaClient:
    """A client of the cluster with the given bootstrap servers; use it as a context manager."""

    def __init__(
        self,
        bootstrap: str = DEFAULT_BOOTSTRAP,
        security: ClientSecurity = PLAINTEXT,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self._security = security
        self._timeout_s = timeout_s
        self._brokers: dict[int, HostPort] = {}
        self._connections: dict[HostPort, BrokerConnection] = {}
        self._bootstrap_connection = self._bootstrap(parse_bootstrap(bootstrap))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections.values():
            connection.close()

    def send(
        self,
        request: Message,
        response: type[R],
        broker_id: int | None = None,
        *,
        version: int | None = None,
    ) -> R:
        """Send a request to one broker, or to any if ``broker_id`` is None; return the response.

        Without ``version``, the newest one that both sides support is sent. An idempotent request
        is retried once on a new connection, as brokers close idle ones.
        """
        try:
            return self._connection(broker_id).send(request, response, version)
        except ConnectionDropped:
            if request.__api_key__ in NOT_IDEMPOTENT:
                raise
        return self._connection(broker_id).send(request, response, version)

    def version_for(self, request: Message) -> int:
        """Return the newest version of a request that a broker and this client support."""
        return self._connection(None).version_for(request)

    def send_without_response(self, request: Message, broker_id: int) -> None:
        """Send one broker a request that has no response (Produce with acks 0)."""
        self._connection(broker_id).send_without_response(request)

    def metadata(self, names: list[str] | None = None, *, create: bool = False) -> MetadataResponse:
        """Fetch metadata of the cluster and of the topics ``names`` (all topics if None).

        With ``create``, the broker may create missing topics.
        """
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        reply = self.send(
            MetadataRequest(topics=topics, allow_auto_topic_creation=create), MetadataResponse
        )
        self._brokers = {item.node_id: HostPort(item.host, item.port) for item in reply.brokers}
        return reply

    def topic(self, name: str, *, create: bool = False) -> MetadataResponseTopic:
        """Fetch metadata of one topic, sorted by partition; wait until all partitions have leaders.

        With ``create``, the broker may create the topic.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            (topic,) = self.metadata([name], create=create).topics
            codes = {topic.error_code, *(item.error_code for item in topic.partitions)}
            retriable = set(RETRIABLE)
            if create:
                retriable.add(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if not codes & retriable or time.monotonic() > deadline:
                code = next(iter(codes - {0}), 0)
                check(f"topic {name}", code, _explanation(name, code))
                topic.partitions.sort(key=lambda item: item.partition_index)
                return topic
            time.sleep(RETRY_BACKOFF_S)

    def configs(
        self,
        resource_type: int,
        name: str,
        keys: list[str] | None = None,
        broker_id: int | None = None,
    ) -> list[DescribeConfigsResourceResult]:
        """Describe the configs ``keys`` (all if None) of a resource, with their synonyms."""
        resource = DescribeConfigsResource(
            resource_type=resource_type, resource_name=name, configuration_keys=keys
        )
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
        (result,) = self.send(request, DescribeConfigsResponse, broker_id).results
        what = f"{RESOURCE_NAMES[resource_type]} {name}".rstrip()
        check(what, result.error_code, result.error_message)
        return result.configs

    def groups(self) -> list[ListedGroup]:
        """List the groups of all brokers."""
        found = []
        for broker in self.metadata([]).brokers:
            reply = self.send(ListGroupsRequest(), ListGroupsResponse, broker.node_id)
            check("list of groups", reply.error_code)
            found += reply.groups
        return found

    def coordinator(self, group_id: str) -> int:
        """Find the broker id of a group's coordinator."""
        deadline = time.monotonic() + self._timeout_s
        request = FindCoordinatorRequest(key=group_id, key_type=0, coordinator_keys=[group_id])
        while True:
            reply = self.send(request, FindCoordinatorResponse)
            found = reply.coordinators[0] if reply.coordinators else reply
            if found.error_code not in RETRIABLE or time.monotonic() > deadline:
                check(f"coordinator of group {group_id}", found.error_code, found.error_message)
                self._brokers[found.node_id] = HostPort(found.host, found.port)
                return int(found.node_id)
            time.sleep(RETRY_BACKOFF_S)

    def _connection(self, broker_id: int | None) -> BrokerConnection:
        bootstrap = self._bootstrap_connection.address
        address = bootstrap if broker_id is None else self._brokers[broker_id]
        connection = self._connections.get(address)
        if connection is not None and connection.is_open:
            return connection
        try:
            return self._connect(address)
        except NotConnected as error:
            if address == bootstrap:
                raise
            text = f"{error}, the address that {bootstrap} advertises for broker {broker_id}"
            raise BrokerUnreachable(text, Remedy.CORRECT_ADVERTISED_ADDRESS) from None
        except ConnectionDropped:
            raise
        except BrokerUnreachable as error:
            if address == bootstrap:
                raise
            text = f"{error}; {bootstrap} advertises {address} for broker {broker_id}"
            remedy = error.remedy or Remedy.CORRECT_ADVERTISED_ADDRESS
            raise BrokerUnreachable(text, remedy) from None

    def _bootstrap(self, addresses: list[HostPort]) -> BrokerConnection:
        for address in addresses[:-1]:
            try:
                return self._connect(address)
            except (BrokerUnreachable, BrokerError):
                continue
        return self._connect(addresses[-1])

    def _connect(self, address: HostPort) -> BrokerConnection:
        connection = BrokerConnection(address, self._security, self._timeout_s)
        self._connections[address] = connection
        return connection


def _explanation(name: str, code: int) -> str | None:
    """Return why a topic was rejected; metadata contains codes only."""
    if code != ErrorCode.INVALID_TOPIC_EXCEPTION:
        return None
    # Imported late because most topics exist.
    from minibroker.broker.metadata.topics import name_problem

    return name_problem(name)
