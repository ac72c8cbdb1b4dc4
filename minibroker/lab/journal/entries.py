"""One entry of the journal, and its decoded body.

Owns the fields of an entry. It must never know how entries are collected, kept or sent. Invariant:
an entry is plain data that never changes, and its frame is decoded only on demand, so keeping an
entry costs no more than its bytes. Kafka's request log (``RequestConvertToJson``) decodes every
request when it is logged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

from minibroker.lab.namespaces import PrefixedNames
from minibroker_protocol import registry
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.entities import has_secrets
from minibroker_protocol.errors import DecodeError, UnsupportedVersion
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Array, Message, Struct
from minibroker_protocol.types import UUID, uuid_text
from minibroker_protocol.wire import decode_request_header, decode_response_header

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"

FRAME_BYTES_MAX: Final = 64 * 1024
"""Larger frames are not kept: their entries have only the size."""


@cache
def may_have_secrets(key: int) -> bool:
    """Whether the frames of an API are not kept, because they may contain passwords and keys.

    The schemas say which fields are secret. After a SaslHandshake, frames without a header follow.
    """
    try:
        schema = registry.schema(key)
    except UnsupportedVersion:
        return False
    is_secret = has_secrets(schema.request) or has_secrets(schema.response)
    return is_secret or key == ApiKey.SASL_HANDSHAKE


class EntryKind(StrEnum):
    """What an entry is about."""

    CONNECTION_OPENED = "connection_opened"
    CONNECTION_CLOSED = "connection_closed"
    CONNECTION_REJECTED = "connection_rejected"
    REQUEST = "request"
    RESPONSE = "response"
    FAULT = "fault"
    CLOCK = "clock"
    STATE = "state"
    LOST = "lost"
    """Represents entries that happened and that the journal does not have."""


class LossReason(StrEnum):
    """Why entries were lost."""

    PROCESS_ENDED = "process_ended"
    """Their process ended before it handed them over."""
    PROCESS_MEMORY = "process_memory"
    """Their process recorded more than it may keep until it hands over."""
    JOURNAL_MEMORY = "journal_memory"
    """The journal had no room for them."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One thing that happened."""

    sequence: int
    """Position in the order of all entries, lost ones too, from 1; of a loss, that of the last
    entry that it represents.
    """
    clock_ms: float
    """When it happened, in milliseconds since 1970 of the broker's clock."""
    kind: EntryKind
    role: str
    """The process of the broker, e.g. ``processor-0``."""
    connection: str | None = None
    """The number of the connection, as in `/v1/connections` and in fault rules."""
    client_id: str | None = None
    address: str | None = None
    """Host and port of the client."""
    api: str | None = None
    """Kafka's name, e.g. ``Produce``; a key without a name is a number."""
    version: int | None = None
    """Version of the request, which is also that of its response."""
    correlation_id: int | None = None
    throttle_time_ms: int | None = None
    """Throttle time in a response; None if the response has no such field."""
    stages: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds that a request took in each stage; of a response that was sent."""
    frame_bytes: int = 0
    """Size of the frame without its size field, also if the frame is not kept."""
    frame: bytes | None = None
    """The frame without its size field, unless it was too large or may contain secrets."""
    details: Mapping[str, JSON] = field(default_factory=dict)
    """What else there is to say: ``reason`` of a closed connection; ``rule`` and ``action`` of a
    fault; ``from`` and ``to`` of a clock; ``what``, ``name``, ``from`` and ``to`` of a state;
    ``entries``, ``reason`` and ``since_ms`` of a loss.
    """


class Loss(NamedTuple):
    """Entries that are lost."""

    role: str
    """The process in which they happened; empty if they did in several."""
    entries: int
    reason: LossReason
    since_ms: float
    """A time of the broker's clock before all of them, in milliseconds since 1970."""

    def entry(self, sequence: int, clock_ms: float) -> JournalEntry:
        """Return the entry for them, with the sequence of the last one and a time after all."""
        role, entries, reason, since_ms = self
        details = {"entries": entries, "reason": reason.value, "since_ms": since_ms}
        return JournalEntry(sequence, clock_ms, EntryKind.LOST, role, details=details)


def loss_of(entry: JournalEntry) -> Loss:
    """Return the loss of an entry of that kind."""
    since_ms = entry.details["since_ms"]
    assert isinstance(since_ms, float | int)
    reason = LossReason(str(entry.details["reason"]))
    return Loss(entry.role, lost_entries(entry), reason, since_ms)


def lost_entries(entry: JournalEntry) -> int:
    """Return how many entries an entry represents that are lost; 0 if it is none of that kind."""
    if entry.kind is not EntryKind.LOST:
        return 0
    entries = entry.details.get("entries")
    return entries if isinstance(entries, int) else 1


def decoded(entry: JournalEntry) -> Mapping[str, Any] | None:
    """Return the fields of a request's or response's body; None if they cannot be read.

    Fields have Kafka's names in snake case; structs are mappings, UUIDs are texts, bytes and
    records are bytes.
    """
    message = decoded_message(entry)
    return None if message is None else fields_of_message(*message)


def decoded_message(entry: JournalEntry) -> tuple[Message, int] | None:
    """Return the body of a request or response and its version; None if it cannot be read."""
    located = _located_message(entry)
    return None if located is None else located[:2]


def _located_message(entry: JournalEntry) -> tuple[Message, int, int] | None:
    """The body of a request or response, its version, and where it starts in the frame."""
    frame = entry.frame
    if frame is None or entry.kind not in {EntryKind.REQUEST, EntryKind.RESPONSE}:
        return None
    try:
        if entry.kind is EntryKind.REQUEST:
            header, at = decode_request_header(frame)
            schema, version = registry.schema(header.api_key), header.api_version
            return decode(schema.request, version, frame, at), version, at
        key = api_key(entry.api or "")
        if key is None or entry.version is None:
            return None
        schema, version = registry.schema(key), entry.version
        if key == ApiKey.API_VERSIONS and not schema.valid_versions.has(version):
            version = 0  # The answer to a version that is too new (KIP-511).
        _, at = decode_response_header(frame, key, version)
        return decode(schema.response, version, frame, at), version, at
    except (DecodeError, UnsupportedVersion):
        return None


def entry_in_namespace(entry: JournalEntry, names: PrefixedNames) -> JournalEntry:
    """Return an entry with the names that clients of a namespace know."""
    if entry.kind is EntryKind.STATE:
        name = str(entry.details.get("name", "")).removeprefix(names.prefix)
        return replace(entry, details={**entry.details, "name": name})
    located = _located_message(entry)
    if located is None or entry.frame is None:
        return entry
    message, version, at = located
    names.to_client(message, version)
    return replace(entry, frame=entry.frame[:at] + encode(message, version))


def api_name(key: int) -> str:
    """Return Kafka's name of an API; the key as a text if there is none."""
    try:
        return "".join(word.capitalize() for word in ApiKey(key).name.split("_"))
    except ValueError:
        return str(key)


def api_key(name: str) -> ApiKey | None:
    """Return the API that is named as in Kafka's messages or documentation, or by its key."""
    if name.isascii() and name.isdecimal():
        return _KEYS_BY_NUMBER.get(name)
    return _KEYS_BY_NAME.get(name.replace("_", "").lower())


_KEYS_BY_NUMBER: Final = {str(int(key)): key for key in ApiKey}
_KEYS_BY_NAME: Final = {key.name.replace("_", "").lower(): key for key in ApiKey}


def fields_of_message(struct: Struct, version: int) -> dict[str, Any]:
    """Return the fields of a decoded body, as `decoded` does."""
    return {
        each.name: _value(each.kind, getattr(struct, each.name), version)
        for each in type(struct).__fields__
        if each.versions.has(version)
    }


def _value(kind: object, value: Any, version: int) -> Any:
    if isinstance(value, Struct):
        return fields_of_message(value, version)
    if isinstance(kind, Array) and value is not None:
        return [_value(kind.element, each, version) for each in value]
    if kind is UUID:
        return uuid_text(value)
    return bytes(value) if isinstance(value, bytearray | memoryview) else value
