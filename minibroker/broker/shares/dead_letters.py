"""Dead letters: which queue a share group has, what is written to it, and how often that is tried.

Theory of operation. A group whose config names a topic has a dead-letter queue (KIP-1191). Each
record that is not delivered again becomes one record of the queue, in the partition whose number is
that of its own modulo their number. Its headers say where the record comes from and why; the key
and value are copied, but not the headers, if the config of the group asks for it, they can be read,
and they fit in a batch of the queue. What does not fit in one batch is written with the next one. A
write that may succeed later is tried five times; if all fail, the records are archived without it.

This module must never know logs, workers or a clock. Invariant: one record of the queue for each
offset, in their order. Kafka's ``ShareGroupDLQStateManager``, ``ShareGroupDLQRecordFetcher`` and
``ShareGroupDLQMetadataCacheHelper``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from minibroker.broker.metadata.features import SHARE_VERSION, level
from minibroker.broker.metadata.image import EMPTY, GROUP, TOPIC, Image
from minibroker.broker.settings import resources as group_settings
from minibroker.broker.settings import topics
from minibroker.broker.settings.definitions import (
    ERRORS_DEADLETTERQUEUE_AUTO_CREATE_TOPICS_ENABLE,
    ERRORS_DEADLETTERQUEUE_TOPIC_NAME_PREFIX,
)
from minibroker.broker.settings.settings import Settings
from minibroker.broker.shares.share_partition import DeadLetters
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import (
    HEADER_BYTES,
    Headers,
    Record,
    build_batch,
    iter_records,
    parse_batch_header,
    record_size,
)

QUEUES_SINCE: Final = 2
"""The first level of ``share.version`` with dead-letter queues."""

ATTEMPTS_MAX: Final = 5
RETRY_S: Final = 1.0
RETRY_MAX_S: Final = 30.0
_JITTER: Final = 0.2

_REJECTED: Final = "Offset rejected by client."
_EXCEEDED: Final = "Offset delivery count exceeded the threshold."


class Queue(NamedTuple):
    """The dead-letter queue of a group."""

    topic: str
    copies_records: bool
    """Whether the record itself is copied, or only where it comes from."""


class LetterSource(NamedTuple):
    """Where dead letters come from."""

    group_id: str
    topic: str
    partition: int


def has_queue(image: Image, group_id: str) -> bool:
    """Whether records of a group that are not delivered again go to a queue."""
    overrides = image.configs.get((GROUP, group_id))
    return (
        overrides is not None
        and bool(overrides.get(group_settings.DLQ_TOPIC_NAME.name))
        and level(image.features, SHARE_VERSION) >= QUEUES_SINCE
    )


def queue_of(image: Image, group_id: str) -> Queue:
    """The queue of a group that has one."""
    overrides = image.configs.get((GROUP, group_id), EMPTY)
    copies = group_settings.DLQ_COPY_RECORD_ENABLE
    return Queue(
        overrides.get(group_settings.DLQ_TOPIC_NAME.name, ""),
        copies.parse(overrides[copies.name]) if copies.name in overrides else copies.default,
    )


def queue_problem(image: Image, settings: Settings, group_id: str) -> str:
    """Why nothing can be written to the queue of a group; empty if it can, or can be created."""
    if not has_queue(image, group_id):
        return f"Configured DLQ topic name in share group: {group_id} is empty."
    topic = queue_of(image, group_id).topic
    prefix = settings[ERRORS_DEADLETTERQUEUE_TOPIC_NAME_PREFIX]
    if topic.startswith("__"):
        return (
            f"Configured DLQ topic name in share group: {group_id} cannot start with __, "
            f"topic: {topic}."
        )
    if topic in image.topics:
        overrides = image.configs.get((TOPIC, topic), EMPTY)
        if not topics.topic_value(settings, overrides, topics.ERRORS_DEADLETTERQUEUE_GROUP_ENABLE):
            return (
                f"DLQ is not enabled on configured DLQ topic for share group: {group_id}, "
                f"topic: {topic}."
            )
    if not topic.startswith(prefix):
        return (
            "Configured DLQ topic name does not comply with the DLQ topic prefix in share group: "
            f"{group_id}, topic: {topic}, prefix: {prefix}."
        )
    can_create = settings[ERRORS_DEADLETTERQUEUE_AUTO_CREATE_TOPICS_ENABLE]
    if topic not in image.topics and not can_create:
        return (
            "DLQ topic does not exist and auto create is disabled on cluster for share group: "
            f"{group_id}, topic: {topic}."
        )
    return ""


CREATED_CONFIG: Final = (
    (topics.ERRORS_DEADLETTERQUEUE_GROUP_ENABLE.name, "true"),
    (topics.MESSAGE_TIMESTAMP_TYPE.name, "CreateTime"),
)
"""The configs of a queue that the broker creates."""


class Attempts:
    """How often the write of dead letters has failed since one succeeded, and when to go on."""

    def __init__(self, random: Callable[[], float]) -> None:
        """``random`` returns a number between 0 and 1."""
        self._failed = 0
        self._random = random

    def failed(self, now: float) -> float | None:
        """Note a failure; return the time of the next attempt, or None if there is none."""
        self._failed += 1
        if self._failed >= ATTEMPTS_MAX:
            return None
        factor = 1 - _JITTER + 2 * _JITTER * self._random()
        return now + min(RETRY_S * 2.0**self._failed * factor, RETRY_MAX_S)

    def succeeded(self) -> None:
        """Forget the failures."""
        self._failed = 0


class CopiedRecords(NamedTuple):
    """Records of the source, and the last offset that is known to have one or none."""

    records: Mapping[int, Record]
    last: int


NOTHING_COPIED: Final[Mapping[int, Record]] = {}


def copied_records(
    batches: Iterable[bytes | memoryview], first: int, last: int, bytes_max: int
) -> CopiedRecords:
    """Take the records of a range from batches of the log, at most so many bytes.

    A record or a compressed batch that can never fit is omitted: the letter has headers only.
    """
    found: dict[int, Record] = {}
    resolved, size = first - 1, 0
    for data in batches:
        header = parse_batch_header(data)
        if size >= bytes_max:
            return CopiedRecords(found, resolved)
        try:
            # What is not compressed has no other size than that in the log, whatever it is.
            limit = max(bytes_max, len(data)) if not header.codec else bytes_max
            records = list(iter_records(data, limit))
        except DecodeError:
            resolved = max(resolved, min(header.last_offset, last))
            continue
        for record in records:
            if record.offset < first:
                continue
            if record.offset > last:
                return CopiedRecords(found, last)
            length = record_size(record, record.offset - header.base_offset, header.base_timestamp)
            if length <= bytes_max:
                if size + length > bytes_max:
                    return CopiedRecords(found, resolved)
                found[record.offset] = record
                size += length
            resolved = max(resolved, record.offset)
    return CopiedRecords(found, last)


class LetterBatch(NamedTuple):
    """A batch for the queue, and the last offset of the source that it has."""

    records: bytes
    last: int


def build_letters(
    source: LetterSource, letters: DeadLetters, copied: CopiedRecords, bytes_max: int, now_ms: int
) -> LetterBatch:
    """Build a batch of the first dead letters: as many as were copied and fit, at least one."""
    built: list[Record] = []
    size = HEADER_BYTES
    for offset in range(letters.first, max(letters.first, min(letters.last, copied.last)) + 1):
        original = copied.records.get(offset, Record())
        headers = _headers(source, letters, offset)
        letter = Record(0, now_ms, original.key, original.value, headers)
        length = record_size(letter, len(built), now_ms)
        if built and size + length > bytes_max:
            break
        built.append(letter)
        size += length
    return LetterBatch(build_batch(built), letters.first + len(built) - 1)


def _headers(source: LetterSource, letters: DeadLetters, offset: int) -> Headers:
    values = (
        ("topic", source.topic),
        ("partition", str(source.partition)),
        ("offset", str(offset)),
        ("group", source.group_id),
        ("delivery.count", str(letters.deliveries)),
        ("message", _REJECTED if letters.is_rejected else _EXCEEDED),
    )
    return tuple((f"__dlq.errors.{name}", value.encode()) for name, value in values)


def without(letters: DeadLetters, taken: Iterable[DeadLetters]) -> list[DeadLetters]:
    """Those of the dead letters that are not among others, which are in the order of offsets."""
    left = []
    first = letters.first
    for other in taken:
        if other.last >= first and other.first <= letters.last:
            if other.first > first:
                left.append(letters._replace(first=first, last=other.first - 1))
            first = other.last + 1
    if first <= letters.last:
        left.append(letters._replace(first=first))
    return left
