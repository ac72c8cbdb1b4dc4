"""Names of topics, groups and transactional ids with the prefix of a namespace.

Owns which fields of messages are such names, which follows from the schemas, and their translation
between a client and the broker. It must never know connections, nor which namespaces exist.
Invariant: what a client names gets the prefix, what a response names loses it, and what a response
says about other names is removed, so a client sees its own namespace only. Kafka has no equivalent.
"""

from __future__ import annotations

import enum
import re
from functools import cache
from typing import Any, Final

from minibroker.faults.entities import EntityKey, key_of
from minibroker.proxy.exchange import UnexpectedFrame
from minibroker.proxy.namespace_acls import ACL_APIS, NamespaceAcls
from minibroker.proxy.rewriting import rewrite
from protocol import registry
from protocol.compiler import decode, encode
from protocol.errors import UnsupportedVersion
from protocol.headers import decode_request_header
from protocol.messages.api_versions import ApiVersionsResponse
from protocol.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest
from protocol.registry import ApiKey, ApiSchema
from protocol.schema import Array, Field, Struct

_CLUSTER: Final = "it concerns the whole cluster"
_BROKERS: Final = "clients do not send it"

NOT_OFFERED: Final = {
    ApiKey.DESCRIBE_QUORUM: _CLUSTER,
    ApiKey.UPDATE_FEATURES: _CLUSTER,
    ApiKey.UNREGISTER_BROKER: _CLUSTER,
    ApiKey.WRITE_TXN_MARKERS: _BROKERS,
    ApiKey.LEADER_AND_ISR: _BROKERS,
    ApiKey.STOP_REPLICA: _BROKERS,
    ApiKey.UPDATE_METADATA: _BROKERS,
    ApiKey.CONTROLLED_SHUTDOWN: _BROKERS,
    ApiKey.ENVELOPE: _BROKERS,
}
"""APIs that are not offered in a namespace, and why."""

_NAMED: Final = frozenset(
    {
        EntityKey.TOPIC,
        EntityKey.GROUP,
        EntityKey.TRANSACTIONAL_ID,
        EntityKey.COORDINATOR_KEY,
    }
)
_ALSO_NAMES: Final = frozenset(
    {"subscribed_topic_names", "source_topics", "repartition_sink_topics"}
)
_PATTERNS: Final = frozenset(
    {"subscribed_topic_regex", "source_topic_regex", "transactional_id_pattern"}
)
_TEXTS: Final = frozenset(
    {
        "acknowledge_error_message",
        "batch_index_error_message",
        "error_message",
        "status_detail",
    }
)
_RESOURCE_TYPES: Final = frozenset({2, 32})
"""Types of resources with configs that are topics and groups."""


class Meaning(enum.Enum):
    """What a field is."""

    NAME = "name"
    PATTERN = "regular expression for names"
    RESOURCE = "name of a resource, whose type is in the field before it"
    TEXT = "text that may contain names"
    BELOW = "struct, or array of structs, with such fields"


@cache
def fields_with_names(cls: type[Struct], version: int) -> tuple[tuple[Field, Meaning], ...]:
    """The fields of a version of a struct that are translated."""
    found = ((item, _meaning(cls, item, version)) for item in cls.__fields__)
    return tuple((item, meaning) for item, meaning in found if meaning is not None)


def _meaning(cls: type[Struct], item: Field, version: int) -> Meaning | None:
    if not item.versions.has(version):
        return None
    kind: Any = item.kind.element if isinstance(item.kind, Array) else item.kind
    if isinstance(kind, type):
        return Meaning.BELOW if fields_with_names(kind, version) else None
    key = key_of(cls, item)
    if key in _NAMED or item.name in _ALSO_NAMES:
        return Meaning.NAME
    if key is EntityKey.RESOURCE:
        return Meaning.RESOURCE
    if item.name in _PATTERNS:
        return Meaning.PATTERN
    return Meaning.TEXT if item.name in _TEXTS else None


class NamespaceNames:
    """The names of one namespace."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.acls: Final = NamespaceAcls(prefix)
        """Serves `ACL_APIS`, whose frames are not translated here."""

    # Messages -----------------------------------------------------------------------------------

    def to_broker(self, request: Struct, version: int) -> None:
        """Give all names in a request the prefix."""
        for item, meaning in fields_with_names(type(request), version):
            value = getattr(request, item.name)
            if meaning is Meaning.BELOW:
                for element in value if isinstance(value, list) else [value]:
                    if element is not None:
                        self.to_broker(element, version)
            elif isinstance(value, list):
                setattr(request, item.name, [self._internal(each, meaning) for each in value])
            elif meaning is not Meaning.RESOURCE or _is_named(request):
                setattr(request, item.name, self._internal(value, meaning))
        if isinstance(request, DescribeTopicPartitionsRequest) and not request.topics:
            # All topics, sorted: those of the namespace follow its prefix.
            request.cursor = request.cursor or Cursor(topic_name=self.prefix, partition_index=0)

    def _internal(self, value: str | None, meaning: Meaning) -> str | None:
        if not value or meaning is Meaning.TEXT:
            return value
        if meaning is Meaning.PATTERN:
            return f"{re.escape(self.prefix)}(?:{value})"
        return self.prefix + value

    def to_client(self, response: Struct, version: int) -> bool:
        """Remove the prefix, and what lacks it; return whether the struct's own names have it."""
        is_own = True
        for item, meaning in fields_with_names(type(response), version):
            value = getattr(response, item.name)
            if meaning is Meaning.BELOW:
                setattr(response, item.name, self._own_structs(value, version))
            elif meaning is Meaning.TEXT:
                setattr(response, item.name, value and value.replace(self.prefix, ""))
            elif isinstance(value, list):
                kept = [each.removeprefix(self.prefix) for each in value if self._is_own(each)]
                setattr(response, item.name, kept)
            elif value and (meaning is not Meaning.RESOURCE or _is_named(response)):
                is_own = is_own and self._is_own(value)
                setattr(response, item.name, value.removeprefix(self.prefix))
        return is_own

    def _own_structs(self, value: Any, version: int) -> Any:
        if isinstance(value, list):
            return [each for each in value if self.to_client(each, version)]
        return value if value is not None and self.to_client(value, version) else None

    def _is_own(self, name: str) -> bool:
        return not name or name.startswith(self.prefix)

    # Frames -------------------------------------------------------------------------------------

    def request(self, api_key: int, version: int, frame: bytes) -> bytes:
        """The frame of a request for the broker. Raises ``UnexpectedFrame``, ``ProtocolError``."""
        if api_key in NOT_OFFERED:
            raise UnexpectedFrame(f"{ApiKey(api_key).name} is not offered in a namespace")
        schema = _schema(api_key, version)
        if schema is None or not _translates(schema.request, version):
            return frame
        _, at = decode_request_header(frame)
        request = decode(schema.request, version, frame, at)
        self.to_broker(request, version)
        return frame[:at] + encode(request, version)

    def response(self, api_key: int, version: int, frame: bytes) -> bytes:
        """The frame of a response for the client. Raises ``ProtocolError``."""
        if api_key == ApiKey.API_VERSIONS:
            return rewrite(api_key, version, frame, _remove_apis)
        schema = _schema(api_key, version)
        if schema is None or api_key in ACL_APIS or not fields_with_names(schema.response, version):
            return frame
        return rewrite(api_key, version, frame, self._change)

    def _change(self, response: Struct, version: int) -> bool:
        self.to_client(response, version)
        return True


def _schema(api_key: int, version: int) -> ApiSchema | None:
    """The schema of an API in a version; None if the broker rejects it."""
    try:
        schema = registry.schema(api_key)
    except UnsupportedVersion:
        return None
    return schema if schema.valid_versions.has(version) else None


def _translates(request: type[Struct], version: int) -> bool:
    return bool(fields_with_names(request, version)) or request is DescribeTopicPartitionsRequest


def _is_named(struct: Any) -> bool:
    """Whether the resource in a struct has a name of a namespace."""
    return struct.resource_type in _RESOURCE_TYPES


def _remove_apis(response: ApiVersionsResponse, _: int) -> bool:
    response.api_keys = [each for each in response.api_keys if each.api_key not in NOT_OFFERED]
    return True
