"""What the fields of messages mean: the entities that they name, errors, addresses, fences.

Owns the list of meanings, which is stated once, at each field of a message. It must never know
a particular message. Invariant: two fields with the same meaning hold values of the same kind, so
code that reads, matches, redacts or rewrites messages asks for a meaning, never for a name. Kafka
marks some of them with ``entityType`` in its message definitions.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple


class Meaning(enum.Enum):
    """What a field, or each element of an array, is."""

    # Entities that a message names.
    TOPIC = "topic"
    TOPIC_ID = "topic_id"
    TOPIC_PATTERN = "topic_pattern"
    PARTITION = "partition"
    GROUP = "group"
    MEMBER = "member"
    GROUP_LEADER = "group_leader"
    """The member that assigns the partitions of a classic group."""
    GROUP_INSTANCE = "group_instance"
    TRANSACTIONAL_ID = "transactional_id"
    TRANSACTIONAL_ID_PATTERN = "transactional_id_pattern"
    PRODUCER_ID = "producer_id"
    BROKER = "broker"
    USER = "user"
    PRINCIPAL = "principal"
    """``User:alice``."""
    PRINCIPAL_NAME = "principal_name"
    """``alice``; the type is in another field."""
    TOKEN = "token"  # noqa: S105 - the id of a delegation token, which is public
    CLIENT_ID = "client_id"
    CLIENT_HOST = "client_host"
    """Address of a client, or of the clients that an ACL is about."""
    CLIENT_INSTANCE = "client_instance"
    CLIENT_METRICS = "client_metrics"
    CLUSTER = "cluster"
    CONFIG = "config"
    """Name of a setting."""
    FEATURE = "feature"
    LOG_DIR = "log_dir"
    RESOURCE = "resource"
    """Name of a resource of any type; `NameByType` says what it is."""
    COORDINATOR_KEY = "coordinator_key"
    """Name of what a coordinator is looked up for; `NameByType` says what it is."""
    QUOTA_ENTITY = "quota_entity"
    """Array that names users, client ids or addresses together."""
    QUOTA_ENTITY_NAME = "quota_entity_name"
    SHARE_STATE = "share_state"
    """Group, topic id and partition of a share group's state, separated by colons."""
    FORGOTTEN = "forgotten"
    """Array of what a session loses: the request is not about it."""

    # Ids and fences that a broker gives out.
    SESSION = "session"
    GENERATION = "generation"
    """Generation of a classic group, in some requests or the epoch of a member."""
    MEMBER_EPOCH = "member_epoch"
    PRODUCER_EPOCH = "producer_epoch"
    LEADER_EPOCH = "leader_epoch"
    OFFSET = "offset"
    BASE_OFFSET = "base_offset"
    """Offset that the first record of an appended batch got."""

    # Results.
    ERROR = "error"
    """Error code of the response, or of the element that has the field."""
    PARTIAL_ERROR = "partial_error"
    """Error code of a part of what an element is about; the element has its own."""
    MESSAGE = "message"
    """Text for people, which may contain names."""
    THROTTLE_TIME = "throttle_time"

    # Addresses.
    HOST = "host"
    """Of a broker, where clients connect to it."""
    PORT = "port"
    PEER_HOST = "peer_host"
    """Of a controller or an instance of an application, where only others of its kind connect."""
    PEER_PORT = "peer_port"


class NameByType(NamedTuple):
    """A name whose meaning depends on the value of another field of the same struct.

    In a response that field may be missing; then the request has it.
    """

    generic: Meaning
    """What it is as long as the type is not known."""
    type_field: str
    meanings: Mapping[int | str, Meaning]

    def __hash__(self) -> int:
        return hash((self.generic, self.type_field))

    def of(self, kind: int | str | None) -> Meaning:
        """The meaning of a name of a type."""
        return self.generic if kind is None else self.meanings.get(kind, self.generic)


_CONFIG_RESOURCES: Final[Mapping[int | str, Meaning]] = {
    2: Meaning.TOPIC,
    4: Meaning.BROKER,
    8: Meaning.BROKER,
    16: Meaning.CLIENT_METRICS,
    32: Meaning.GROUP,
}
_ACL_RESOURCES: Final[Mapping[int | str, Meaning]] = {
    2: Meaning.TOPIC,
    3: Meaning.GROUP,
    4: Meaning.CLUSTER,
    5: Meaning.TRANSACTIONAL_ID,
    6: Meaning.TOKEN,
    7: Meaning.PRINCIPAL,
}

CONFIG_RESOURCE: Final = NameByType(Meaning.RESOURCE, "resource_type", _CONFIG_RESOURCES)
"""Kafka's ``ConfigResource.Type``."""
ACL_RESOURCE: Final = NameByType(Meaning.RESOURCE, "resource_type", _ACL_RESOURCES)
"""Kafka's ``ResourceType``. With the pattern type PREFIXED the name is a prefix."""
ACL_RESOURCE_FILTER: Final = NameByType(Meaning.RESOURCE, "resource_type_filter", _ACL_RESOURCES)
COORDINATOR_KEY: Final = NameByType(
    Meaning.COORDINATOR_KEY,
    "key_type",
    {0: Meaning.GROUP, 1: Meaning.TRANSACTIONAL_ID, 2: Meaning.SHARE_STATE},
)
"""Kafka's ``FindCoordinatorRequest.CoordinatorType``."""
QUOTA_ENTITY_NAME: Final = NameByType(
    Meaning.QUOTA_ENTITY_NAME,
    "entity_type",
    {"user": Meaning.USER, "client-id": Meaning.CLIENT_ID, "ip": Meaning.CLIENT_HOST},
)
"""Kafka's ``ClientQuotaEntity``."""
