"""Names of topics, groups and transactional ids with the prefix of a namespace.

Owns which fields of messages are such names, which follows from the schemas, and their translation
between a client and the broker. It must never know connections, nor which namespaces exist.
Invariant: what a client names gets the prefix, what a response names loses it, and what a response
says about other names is removed, so a client sees its own namespace only. Kafka has no equivalent.
"""

from __future__ import annotations

import re
from typing import Any, Final

from minibroker.lab.proxy.exchange import UnexpectedFrame
from minibroker.lab.proxy.namespace_acls import ACL_APIS, NamespaceAcls
from minibroker.lab.proxy.rewriting import rewrite
from minibroker_protocol import registry
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.entities import marked_fields, marks, meaning_in, struct_in
from minibroker_protocol.errors import UnsupportedVersion
from minibroker_protocol.headers import decode_request_header
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.api_versions import ApiVersionsResponse
from minibroker_protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
)
from minibroker_protocol.registry import ApiKey, ApiSchema
from minibroker_protocol.schema import Struct

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

NAMES: Final = frozenset(
    {
        Meaning.TOPIC,
        Meaning.GROUP,
        Meaning.TRANSACTIONAL_ID,
        Meaning.COORDINATOR_KEY,
        Meaning.SHARE_STATE,
    }
)
PATTERNS: Final = frozenset({Meaning.TOPIC_PATTERN, Meaning.TRANSACTIONAL_ID_PATTERN})
TRANSLATED: Final = NAMES | PATTERNS | {Meaning.MESSAGE}


class NamespaceNames:
    """The names of one namespace."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.acls: Final = NamespaceAcls(prefix)
        """Serves `ACL_APIS`, whose frames are not translated here."""

    # Messages -----------------------------------------------------------------------------------

    def to_broker(self, request: Struct, version: int) -> None:
        """Give all names in a request the prefix."""
        for mark in marks(request, version, NAMES | PATTERNS):
            if isinstance(mark.value, list):
                mark.replace([self._internal(each, mark.meaning) for each in mark.value])
            else:
                mark.replace(self._internal(mark.value, mark.meaning))
        if isinstance(request, DescribeTopicPartitionsRequest) and not request.topics:
            # All topics, sorted: those of the namespace follow its prefix.
            request.cursor = request.cursor or Cursor(topic_name=self.prefix, partition_index=0)

    def _internal(self, value: str | None, meaning: Meaning) -> str | None:
        if not value:
            return value
        if meaning in PATTERNS:
            return f"{re.escape(self.prefix)}(?:{value})"
        return self.prefix + value

    def to_client(self, response: Struct, version: int) -> bool:
        """Remove the prefix, and what lacks it; return whether the struct's own names have it."""
        is_own = True
        for item in marked_fields(type(response), version, TRANSLATED):
            value = getattr(response, item.name)
            meaning = meaning_in(response, item)
            if struct_in(item) is not None:
                setattr(response, item.name, self._own_structs(value, version))
            elif meaning is Meaning.MESSAGE:
                setattr(response, item.name, value and value.replace(self.prefix, ""))
            elif isinstance(value, list):
                kept = [each.removeprefix(self.prefix) for each in value if self._is_own(each)]
                setattr(response, item.name, kept)
            elif value and meaning in NAMES:
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
        if (
            schema is None
            or api_key in ACL_APIS
            or not marked_fields(schema.response, version, TRANSLATED)
        ):
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
    has_names = marked_fields(request, version, NAMES | PATTERNS)
    return bool(has_names) or request is DescribeTopicPartitionsRequest


def _remove_apis(response: ApiVersionsResponse, _: int) -> bool:
    response.api_keys = [each for each in response.api_keys if each.api_key not in NOT_OFFERED]
    return True
