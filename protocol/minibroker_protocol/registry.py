"""All APIs, and the modules of their schemas.

Owns the API keys, and imports an API's request and response class at its first use, so that unused
ones are never imported. It must never know what a broker serves: ranges here are declared versions.
Invariant: the module of an API is its key's name in lower case, and its classes are that name in
camel case with ``Request`` and ``Response``. Kafka's ``org.apache.kafka.common.protocol.ApiKeys``.
"""

from __future__ import annotations

import enum
import functools
import importlib
from typing import NamedTuple

from minibroker_protocol.errors import UnsupportedVersion
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import NO_VERSIONS, Field, Message, Versions


class ApiKey(enum.IntEnum):
    """The number of each API, under Kafka's name. 4 to 7 belong to its ZooKeeper mode."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = 93


class ApiSchema(NamedTuple):
    """One API: its classes, and the versions in which both are declared."""

    key: ApiKey
    name: str
    request: type[Message]
    response: type[Message]
    valid_versions: Versions

    def flexible(self, version: int) -> bool:
        """Whether `version` uses the compact encoding with tagged fields (KIP-482)."""
        return self.request.__flexible__.has(version)

    def request_header_version(self, version: int) -> int:
        """Return the version of the header of a request of `version`.

        It is 0 only for ControlledShutdown version 0, which is older than client ids.
        """
        if self.key == ApiKey.CONTROLLED_SHUTDOWN and version == 0:
            return 0
        return 2 if self.flexible(version) else 1

    def response_header_version(self, version: int) -> int:
        """Return the version of the header of a response of `version`.

        Always 0 for ApiVersions: a client reads that response before it knows the broker's
        versions.
        """
        return 1 if self.flexible(version) and self.key != ApiKey.API_VERSIONS else 0


@functools.cache
def schema(key: int) -> ApiSchema:
    """Return the schema of an API. Raises `UnsupportedVersion` for an unknown key."""
    try:
        api_key = ApiKey(key)
    except ValueError:
        raise UnsupportedVersion(f"no API has the key {key}") from None
    name = "".join(word.capitalize() for word in api_key.name.split("_"))
    module = importlib.import_module(f"minibroker_protocol.messages.{api_key.name.lower()}")
    request: type[Message] = getattr(module, f"{name}Request")
    response: type[Message] = getattr(module, f"{name}Response")
    return ApiSchema(api_key, name, request, response, request.__versions__)


@functools.cache
def throttle_versions(key: int) -> Versions:
    """The versions of an API whose responses say how long the client is throttled."""
    field = _throttle_time(key)
    return NO_VERSIONS if field is None else field.versions


@functools.cache
def obeyed_throttle_versions(key: int) -> Versions:
    """The versions of an API in which clients throttle themselves (KIP-219)."""
    field = _throttle_time(key)
    return NO_VERSIONS if field is None else field.obeyed


def _throttle_time(key: int) -> Field | None:
    fields = schema(key).response.__fields__
    return next((item for item in fields if item.means is Meaning.THROTTLE_TIME), None)
