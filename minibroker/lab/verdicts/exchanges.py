"""Requests of a client with their responses, and what came back for each entity.

Owns the error of each partition, group or transaction in a response. It must never judge.
Invariant: a body that cannot be decoded, or was not kept, counts as missing. Kafka's
``org.apache.kafka.common.requests.AbstractResponse.errorCounts`` is similar.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from itertools import islice
from typing import Any, Final, NamedTuple, cast

from minibroker.lab.journal.entries import JournalEntry, api_key, decoded_message, fields_of_message
from minibroker_protocol.entities import fields_of, is_entity_array
from minibroker_protocol.errors import DecodeError, ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.records import NO_SEQUENCE, BatchHeader, Record, iter_batches, iter_records
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Message, Struct
from minibroker_protocol.types import uuid_text

Body = Mapping[str, Any]
VersionedMessage = tuple[Message, int]
_UNREAD: Final[Any] = object()


class ObservedExchange:
    """One request and, if it was answered, its response."""

    __slots__ = (
        "_request",
        "_request_message",
        "_response",
        "_response_message",
        "answer",
        "key",
        "sent",
    )

    def __init__(self, sent: JournalEntry) -> None:
        self.sent = sent
        self.answer: JournalEntry | None = None
        self.key: ApiKey | None = None if sent.api is None else api_key(sent.api)
        self._request = self._request_message = _UNREAD
        self._response = self._response_message = _UNREAD

    @property
    def version(self) -> int:
        """Version of the request."""
        return self.sent.version or 0

    @property
    def sent_ms(self) -> float:
        """When the broker read the request."""
        return self.sent.clock_ms

    @property
    def answered_ms(self) -> float | None:
        """When the broker sent the response; None if it did not."""
        return None if self.answer is None else self.answer.clock_ms

    @property
    def last_ms(self) -> float:
        """When the response was sent, or the request read if there is no response."""
        return self.sent.clock_ms if self.answer is None else self.answer.clock_ms

    @property
    def sequences(self) -> tuple[int, ...]:
        """Sequence numbers of the entries."""
        if self.answer is None:
            return (self.sent.sequence,)
        return (self.sent.sequence, self.answer.sequence)

    @property
    def request(self) -> Body | None:
        """The decoded request; None if it is missing."""
        message = self.request_message
        if self._request is _UNREAD:
            self._request = None if message is None else fields_of_message(*message)
        return cast("Body | None", self._request)

    @property
    def request_message(self) -> VersionedMessage | None:
        """The request as a message; None if it is missing."""
        if self._request_message is _UNREAD:
            self._request_message = decoded_message(self.sent)
        return cast("VersionedMessage | None", self._request_message)

    @property
    def response(self) -> Body | None:
        """The decoded response; None if it is missing."""
        message = self.response_message
        if self._response is _UNREAD:
            self._response = None if message is None else fields_of_message(*message)
        return cast("Body | None", self._response)

    @property
    def response_message(self) -> VersionedMessage | None:
        """The response as a message; None if it is missing."""
        if self._response_message is _UNREAD:
            answer = self.answer
            self._response_message = None if answer is None else _decoded_response(answer)
        return cast("VersionedMessage | None", self._response_message)

    @property
    def title(self) -> str:
        """API and version for a reader."""
        return f"{self.sent.api} v{self.version}"


def _decoded_response(answer: JournalEntry) -> VersionedMessage | None:
    found = decoded_message(answer)
    if found is not None or answer.frame is None or answer.api is None:
        return found
    if api_key(answer.api) is not ApiKey.API_VERSIONS:
        return None
    # A broker that does not know the version of the request answers with version 0 (KIP-511).
    return decoded_message(replace(answer, version=0))


class EntityResult(NamedTuple):
    """What came back for one entity of a request."""

    exchange: ObservedExchange
    subject: str
    """The partition, group, transactional id or names that the request is about."""
    code: int
    """Error code; that of the whole response if the entity has none of its own."""
    has_leader: bool = False
    """Whether the response names the current leader (KIP-951)."""

    @property
    def error(self) -> str:
        """The name of the error."""
        return ErrorCode.describe(self.code)


LEADER_APIS: Final = frozenset(
    {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH}
)
"""APIs that a partition's leader answers."""


def topic_of(fields: Body) -> str:
    """Return the name of a topic, or its id if the version has no name."""
    return str(fields.get("name") or fields.get("topic") or fields.get("topic_id") or "")


def _partitions(struct: Struct, version: int, body: Body) -> Iterator[tuple[str, Body]]:
    """The partitions in the arrays of topics of a message, with their fields."""
    for topic, topic_body in _elements(struct, version, body):
        for name in _own_values(topic, version, _TOPIC):
            text = uuid_text(name) if isinstance(name, bytes) else name
            for partition, fields in _elements(topic, version, topic_body):
                for index in _own_values(partition, version, _PARTITION):
                    yield f"{text}-{index}", fields


def _own_values(struct: Struct, version: int, meanings: Set[Meaning]) -> list[Any]:
    """The values of a struct itself that have one of the meanings."""
    return [
        getattr(struct, item.name)
        for item, meaning in fields_of(type(struct), version)
        if meaning in meanings
    ]


_TOPIC: Final = frozenset({Meaning.TOPIC, Meaning.TOPIC_ID})
_PARTITION: Final = frozenset({Meaning.PARTITION})


def _elements(struct: Struct, version: int, body: Body) -> Iterator[tuple[Struct, Body]]:
    """The elements of the arrays of a struct, with their fields."""
    for item, _ in fields_of(type(struct), version):
        if is_entity_array(item):
            yield from zip(getattr(struct, item.name) or (), body[item.name] or (), strict=True)


def partitions_of(body: Body, topics: str) -> list[str]:
    """Return the partitions in an array of topics with arrays of numbers."""
    return [
        f"{topic_of(topic)}-{number}"
        for topic in body.get(topics) or ()
        for number in topic["partitions"]
    ]


def requested_partitions(exchange: ObservedExchange) -> list[tuple[str, Body]]:
    """Return the partitions that a request to a leader names, with their fields."""
    return _partitions_of_leader(exchange, exchange.request_message, exchange.request)


def returned_partitions(exchange: ObservedExchange) -> list[tuple[str, Body]]:
    """Return the partitions in the response of a leader, with their fields."""
    return _partitions_of_leader(exchange, exchange.response_message, exchange.response)


def _partitions_of_leader(
    exchange: ObservedExchange, message: VersionedMessage | None, body: Body | None
) -> list[tuple[str, Body]]:
    if exchange.key not in LEADER_APIS or message is None or body is None:
        return []
    return list(_partitions(*message, body))


_EPOCH_ERRORS: Final = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH})
"""Errors that a broker gives only to a request with the leader epoch of its metadata (KIP-320)."""


def results_of(exchange: ObservedExchange) -> Iterator[EntityResult]:
    """Yield the result of each entity of a request that was answered.

    An error that no broker gives to the request, but a fault rule can, is not a result.
    """
    if exchange.key is None or exchange.request is None or exchange.response is None:
        return
    if exchange.key not in LEADER_APIS:
        codes = [code for code in error_codes(exchange.response) if code]
        yield EntityResult(exchange, subject_of(exchange), codes[0] if codes else 0)
        return
    found = dict(returned_partitions(exchange))
    for subject, asked in requested_partitions(exchange):
        result = found.get(subject, {})
        has_epoch = asked.get("current_leader_epoch", -1) >= 0
        if result.get("error_code") in _EPOCH_ERRORS and not has_epoch:
            continue
        leader = result.get("current_leader") or {}
        yield EntityResult(
            exchange, subject, result.get("error_code", 0), leader.get("leader_id", -1) >= 0
        )


def subject_of(exchange: ObservedExchange) -> str:
    """Return the group, transactional id, coordinator keys or topics that a request names."""
    request = exchange.request or {}
    if group := request.get("group_id"):
        return f"group {group}"
    if transactional_id := request.get("transactional_id"):
        return f"transactional id {transactional_id}"
    groups = request.get("groups")
    if groups and isinstance(groups[0], Mapping):
        return f"group {groups[0]['group_id']}"
    if exchange.key is ApiKey.FIND_COORDINATOR:
        return ", ".join(request.get("coordinator_keys") or [request.get("key", "")])
    if exchange.key is ApiKey.METADATA:
        return ", ".join(sorted(topic_of(topic) for topic in request.get("topics") or ()))
    return ""


def is_retriable(code: int | None) -> bool:
    """Whether a code is one of the errors after which a request may be repeated."""
    try:
        return code is not None and ErrorCode(code).retriable
    except ValueError:
        return False


def error_codes(body: Body) -> Iterator[int]:
    """Yield every error code of a response, the outer ones first."""
    nested: list[Body] = []
    for name, value in body.items():
        if name == "error_code":
            yield int(value)
        elif isinstance(value, Mapping):
            nested.append(value)
        elif isinstance(value, list):
            nested += [item for item in value if isinstance(item, Mapping)]
    for fields in nested:
        yield from error_codes(fields)


class SentBatch(NamedTuple):
    """A batch in a Produce request."""

    header: BatchHeader
    content: bytes
    """The whole batch."""

    @property
    def has_sequence(self) -> bool:
        """Whether an idempotent producer sent it."""
        return self.header.has_producer_id and self.header.base_sequence != NO_SEQUENCE

    @property
    def identity(self) -> object:
        """Equal for two batches if the second one repeats the first.

        A retry may be built again, so that its checksum differs. An idempotent producer keeps the
        sequence of the batch. Other batches start with the same record, with its timestamp.
        """
        if self.has_sequence:
            return self.header.producer_id, self.header.base_sequence
        records = self.records(1)
        if not records:
            return self.header.crc
        first = records[0]
        return first.timestamp, first.key, first.value, first.headers

    def records(self, count: int | None = None) -> list[Record] | None:
        """Return the records, or the first ones; None if they cannot be read."""
        try:
            return list(islice(iter_records(self.content, RECORD_BYTES_MAX), count))
        except DecodeError:
            return None


RECORD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Records of a compressed batch that take more bytes are not compared."""


def sent_batches(records: bytes | None) -> list[SentBatch]:
    """Return the batches in a records field; none if they cannot be read."""
    if records is None:
        return []
    try:
        found = list(iter_batches(records))
    except DecodeError:
        return []
    return [SentBatch(header, records[at : at + header.size]) for at, header in found]


def batch_identities(exchange: ObservedExchange) -> dict[str, object]:
    """Return what identifies the batches of a Produce, by partition; nothing for other APIs."""
    if exchange.key is not ApiKey.PRODUCE:
        return {}
    return {
        subject: tuple(each.identity for each in sent_batches(fields["records"]))
        for subject, fields in requested_partitions(exchange)
    }
