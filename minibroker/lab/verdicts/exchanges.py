"""Requests of a client with their responses, and what came back for each entity.

Owns the error of each partition, group or transaction in a response. It must never judge.
Invariant: a body that cannot be decoded, or was not kept, counts as missing. Kafka's
``org.apache.kafka.common.requests.AbstractResponse.errorCounts`` is similar.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final, NamedTuple, cast

from minibroker.lab.journal.entries import JournalEntry, api_key, decoded
from minibroker_protocol.errors import DecodeError, ErrorCode
from minibroker_protocol.records import NO_SEQUENCE, BatchHeader, Record, iter_batches, iter_records
from minibroker_protocol.registry import ApiKey

Body = Mapping[str, Any]
_UNREAD: Final[Any] = object()


class ObservedExchange:
    """One request and, if it was answered, its response."""

    __slots__ = ("_request", "_response", "answer", "key", "sent")

    def __init__(self, sent: JournalEntry) -> None:
        self.sent = sent
        self.answer: JournalEntry | None = None
        self.key: ApiKey | None = None if sent.api is None else api_key(sent.api)
        self._request = self._response = _UNREAD

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
        if self._request is _UNREAD:
            self._request = decoded(self.sent)
        return cast("Body | None", self._request)

    @property
    def response(self) -> Body | None:
        """The decoded response; None if it is missing."""
        if self._response is _UNREAD:
            self._response = None if self.answer is None else _decoded_response(self.answer)
        return cast("Body | None", self._response)

    @property
    def title(self) -> str:
        """API and version for a reader."""
        return f"{self.sent.api} v{self.version}"


def _decoded_response(answer: JournalEntry) -> Body | None:
    found = decoded(answer)
    if found is not None or answer.frame is None or answer.api is None:
        return found
    if api_key(answer.api) is not ApiKey.API_VERSIONS:
        return None
    # A broker that does not know the version of the request answers with version 0 (KIP-511).
    return decoded(replace(answer, version=0))


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


class _Fields(NamedTuple):
    topics: str
    partitions: str
    topic_results: str
    partition_results: str


_PARTITIONED: Final = {
    ApiKey.PRODUCE: _Fields("topic_data", "partition_data", "responses", "partition_responses"),
    ApiKey.FETCH: _Fields("topics", "partitions", "responses", "partitions"),
    ApiKey.LIST_OFFSETS: _Fields("topics", "partitions", "topics", "partitions"),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _Fields("topics", "partitions", "topics", "partitions"),
}
"""APIs of partition leaders, with the fields that name partitions and their results."""

LEADER_APIS: Final = frozenset(_PARTITIONED)
"""APIs that a partition's leader answers."""


def topic_of(fields: Body) -> str:
    """Return the name of a topic, or its id if the version has no name."""
    return str(fields.get("name") or fields.get("topic") or fields.get("topic_id") or "")


def _index(fields: Body) -> int:
    for name in ("index", "partition_index", "partition"):
        if name in fields:
            return int(fields[name])
    raise AssertionError(f"no partition in {sorted(fields)}")


def _partitions(body: Body, topics: str, partitions: str) -> Iterator[tuple[str, Body]]:
    for topic in body[topics] or ():
        name = topic_of(topic)
        for partition in topic[partitions] or ():
            yield f"{name}-{_index(partition)}", partition


def partitions_of(body: Body, topics: str) -> list[str]:
    """Return the partitions in an array of topics with arrays of numbers."""
    return [
        f"{topic_of(topic)}-{number}"
        for topic in body.get(topics) or ()
        for number in topic["partitions"]
    ]


def requested_partitions(exchange: ObservedExchange) -> list[tuple[str, Body]]:
    """Return the partitions that a request to a leader names, with their fields."""
    fields = None if exchange.key is None else _PARTITIONED.get(exchange.key)
    if fields is None or exchange.request is None:
        return []
    return list(_partitions(exchange.request, fields.topics, fields.partitions))


def returned_partitions(exchange: ObservedExchange) -> list[tuple[str, Body]]:
    """Return the partitions in the response of a leader, with their fields."""
    fields = None if exchange.key is None else _PARTITIONED.get(exchange.key)
    if fields is None or exchange.response is None:
        return []
    return list(_partitions(exchange.response, fields.topic_results, fields.partition_results))


_EPOCH_ERRORS: Final = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH})
"""Errors that a broker gives only to a request with the leader epoch of its metadata (KIP-320)."""


def results_of(exchange: ObservedExchange) -> Iterator[EntityResult]:
    """Yield the result of each entity of a request that was answered.

    An error that no broker gives to the request, but a fault rule can, is not a result.
    """
    if exchange.key is None or exchange.request is None or exchange.response is None:
        return
    if exchange.key not in _PARTITIONED:
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
