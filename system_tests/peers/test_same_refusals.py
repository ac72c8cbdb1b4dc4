"""Kafka and minibroker reject the same requests of a client with few rights, with the same errors.

The conversations are those of `test_same_answers`, run by a user with the ACLs listed here.
Invariant: a client without a right learns from neither broker what the other one hides.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from minibroker.broker.security.acl import (
    CLUSTER_NAME,
    Operation,
    PatternType,
    Permission,
    Resource,
)
from minibroker_protocol.messages.create_acls import AclCreation, CreateAclsRequest
from minibroker_protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from minibroker_protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from minibroker_protocol.messages.describe_acls import DescribeAclsRequest
from minibroker_protocol.messages.metadata import MetadataRequest
from minibroker_protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from minibroker_protocol.messages.sasl_handshake import SaslHandshakeRequest
from system_tests.connections.dialling import Client
from system_tests.harness.brokers import RunningBroker, start_with_listener
from system_tests.harness.waiting import wait_until
from system_tests.peers import configs, groups, operations, quotas, records, tokens, topics
from system_tests.peers.acls_and_users import filter_of
from system_tests.peers.conversation import (
    MARKER_TOPIC,
    Conversation,
    differences,
    prepare,
    run_conversation,
)
from system_tests.peers.test_same_answers import INTENDED as INTENDED_FOR_ALL
from system_tests.peers.test_same_answers import SETTINGS as SETTINGS_FOR_ALL

pytestmark = [pytest.mark.minibroker, pytest.mark.java]

USER, PASSWORD = "alice", "wonderland"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SETTINGS: Final = {
    **SETTINGS_FOR_ALL,
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        f'{MODULE} required user_{USER}="{PASSWORD}";'
    ),
}
SECURED: Final = "SASL_PLAINTEXT"

INTENDED: Final = {
    "magic 3": "Kafka parses batches before it authorizes the request",
    "transactional id without a transaction": "a request that names a transactional id needs WRITE"
    " on it, whatever its batches say",
    "transactional batch": "the same, the other way round",
    "retention.ms 0 None 5": "Kafka validates a change before it authorizes the request",
    "whole None True": "the same",
    "whole None False": "the same",
}

# Without conversations about the broker's config: most of their changes are impossible anyway.
CONVERSATIONS: Final = [
    conversation
    for each in (topics, records, groups, quotas, operations, tokens)
    for conversation in each.CONVERSATIONS
] + [configs.of_topics]


def allowed(operation: Operation, resource: Resource, name: str = "*", **other: Any) -> AclCreation:
    values: dict[str, Any] = {
        "resource_type": resource,
        "resource_name": name,
        "resource_pattern_type": PatternType.LITERAL,
        "principal": f"User:{USER}",
        "host": "*",
        "operation": operation,
        "permission_type": Permission.ALLOW,
    }
    return AclCreation(**{**values, **other})


RULES: Final = {
    "nothing": [],
    "some": [
        allowed(Operation.READ, Resource.GROUP),
        allowed(Operation.READ, Resource.TOPIC, "m", resource_pattern_type=PatternType.PREFIXED),
        allowed(Operation.CREATE, Resource.CLUSTER, CLUSTER_NAME),
        allowed(Operation.DELETE, Resource.TOPIC),
        allowed(Operation.DELETE, Resource.TOPIC, "dying-5", permission_type=Permission.DENY),
    ],
}


class Peer(NamedTuple):
    broker: RunningBroker
    secured: tuple[str, int]

    def connect(self) -> Client:
        client = Client(self.secured, client_id="peers")
        assert client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
        token = f"\0{USER}\0{PASSWORD}".encode()
        assert client.ask(SaslAuthenticateRequest(auth_bytes=token), 1).error_code == 0
        return client

    def prepare(self, rules: list[AclCreation]) -> None:
        """Leave only these ACLs, and no topics of an earlier conversation."""
        with Client(self.broker.address) as client:
            every = MetadataRequest(topics=None)

            def left() -> list[str]:
                found = (topic.name for topic in client.ask(every, 12).topics)
                return [
                    name for name in found if not name.startswith("__") and name != MARKER_TOPIC
                ]

            gone = [DeleteTopicState(name=name) for name in left()]
            client.ask(DeleteTopicsRequest(topics=gone, timeout_ms=10_000), 6)
            client.ask(DeleteAclsRequest(filters=[DeleteAclsFilter(**filter_of())]), 3)
            client.ask(CreateAclsRequest(creations=rules), 3)

            def ruled() -> int:
                found = client.ask(DescribeAclsRequest(**filter_of()), 3).resources
                return sum(len(resource.acls) for resource in found)

            wait_until(lambda: not left() and ruled() == len(rules), "a fresh start")


@pytest.fixture(scope="module")
def peers(kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Peer, ...]]:
    """Yield both brokers, with the same settings."""
    folder = tmp_path_factory.mktemp("kafka")
    with ExitStack() as stack:
        started = []
        for kind in ("minibroker", "kafka"):
            started.append(Peer(*start_with_listener(kind, SECURED, folder, SETTINGS)))
            stack.enter_context(started[-1].broker)
        for peer in started:
            prepare(peer.broker)
        yield tuple(started)
        assert PASSWORD not in started[0].broker.printed()


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_kafka_and_minibroker_reject_the_same_requests(
    peers: tuple[Peer, ...], rules: list[AclCreation], conversation: Conversation
) -> None:
    answers = []
    for peer in peers:
        peer.prepare(rules)
        answers.append(run_conversation(peer.broker, conversation, peer.connect).answers)
    own, kafka = answers
    differ = {name: differences(kafka[name], own[name]) for name in kafka}
    expected = {
        *INTENDED,
        *(name for about, name in INTENDED_FOR_ALL if about == conversation.__name__),
    }
    unlike = {name: lines for name, lines in differ.items() if lines and name not in expected}
    assert not unlike, f"Kafka's answer / ours: {unlike}"
