"""Records in the control API: produce them to a topic, read them, and wait for them.

Owns the records' form as JSON, their partitions, and the limits of requests and answers. It must
never know how a log is stored. Invariant: a record that is answered as produced is in its log, and
reading takes nothing from consumers: no group and no committed offset changes. Requests reach the
I/O workers directly, so they need no listener, no credentials and no quota, fault rules do not
apply to them, and a clock that is frozen does not stop them. Kafka's REST proxies are clients.
"""

from __future__ import annotations

import heapq
import re
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from minibroker.broker.metadata.image import partition_owner
from minibroker.broker.metadata.topics import name_problem
from minibroker.broker.process.messages import (
    BatchAppended,
    ReadRecords,
    RecordsAppend,
    RecordsRead,
)
from minibroker.broker.settings import AUTO_CREATE_TOPICS_ENABLE
from minibroker.client.producer import partition_of
from minibroker.lab.control.operation import (
    POLL_S,
    TIMED_OUT,
    UNAVAILABLE,
    WAIT_MS,
    WAIT_MS_MAX,
    Operations,
    whole_number,
)
from minibroker.lab.control.snapshots import ChangeLock
from minibroker.lab.control.topics import TopicCreation, TopicView, create_topic, get_topic
from minibroker.lab.errors import ApiError, Conflict, Unavailable
from minibroker.lab.schema import Doc, Fault, InvalidJson, Length, Range, did_you_mean
from minibroker.runtime.rpc import PeerLost
from minibroker_protocol.errors import DecodeError, ErrorCode
from minibroker_protocol.records import Record, build_batch, iter_batches, iter_records

if TYPE_CHECKING:
    from minibroker.lab.control.broker import ControlledBroker

RECORDS_BODY_MAX_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of a body with records: three records of the default maximum size, as base64."""

RECORDS_MAX: Final = 10_000
"""Maximum number of records in one request or answer."""

HEADERS_MAX: Final = 1000
"""Maximum number of headers of a record that is produced."""

LIMIT: Final = 100
"""How many records an answer has at most by default."""

ANSWER_MAX_BYTES: Final = 4 * 1024 * 1024
"""Bytes of keys, values and headers after which an answer ends; its last record may exceed them."""

SHOWN_RECORDS: Final = 3
"""Number of records that an error shows."""

SHOWN_CHARACTERS: Final = 60

_BATCH_BYTES: Final = 512 * 1024
"""Maximum bytes of a batch with several records: half of the default ``message.max.bytes``."""

_READ_BYTES: Final = 1024 * 1024
"""Bytes of batches that an I/O worker returns at a time."""

_OFFSET_MAX: Final = 2**63 - 1
_PARTITION_MAX: Final = 2**31 - 1
_ISOLATION_LEVELS: Final = ("read_committed", "read_uncommitted")
_ENCODINGS: Final = ("text", "base64")
_POSITIONS: Final = re.compile(r"[0-9]{1,10}:[0-9]{1,19}(,[0-9]{1,10}:[0-9]{1,19})*", re.ASCII)

_BASE64: Final = Doc("The same as base64, for what is not UTF-8 text.")
_NO_TOPIC: Final = {404: "There is no topic with this name, and the broker may not create it."}


class RecordHeader(NamedTuple):
    """A header of a record; with neither text nor base64 its value is null."""

    key: str
    value: str | None = None
    value_base64: Annotated[str | None, _BASE64] = None


class NewRecord(NamedTuple):
    """A record to produce; a key or value with neither text nor base64 is null."""

    key: Annotated[str | None, Doc("As text. Chooses the partition, as in Kafka's clients.")] = None
    key_base64: Annotated[str | None, _BASE64] = None
    value: Annotated[str | None, Doc("As text.")] = None
    value_base64: Annotated[str | None, _BASE64] = None
    headers: Annotated[tuple[RecordHeader, ...], Length(0, HEADERS_MAX)] = ()
    partition: Annotated[
        int | None,
        Range(0, _PARTITION_MAX),
        Doc("By default chosen by the key; records without a key go to each partition in turn."),
    ] = None
    timestamp_ms: Annotated[
        int | None, Range(0, _OFFSET_MAX), Doc("By default the broker's clock.")
    ] = None


class NewRecords(NamedTuple):
    """Records to produce."""

    records: Annotated[tuple[NewRecord, ...], Length(1, RECORDS_MAX)]


class RecordPosition(NamedTuple):
    """Where a record was appended."""

    partition: int
    offset: int


class ProducedRecords(NamedTuple):
    """The positions of records, in the order of the request."""

    records: tuple[RecordPosition, ...]


class TopicRecord(NamedTuple):
    """A record of a topic; a key or value with neither text nor base64 is null."""

    partition: int
    offset: int
    timestamp_ms: int
    key: Annotated[str | None, Doc("As text, if it is UTF-8.")]
    key_base64: Annotated[str | None, Doc("Otherwise as base64.")]
    value: Annotated[str | None, Doc("As text, if it is UTF-8.")]
    value_base64: Annotated[str | None, Doc("Otherwise as base64.")]
    headers: tuple[RecordHeader, ...]


class RecordList(NamedTuple):
    """Records of a topic, by timestamp; those of one partition are in the order of their offsets.

    The next request continues with ``?positions=0:5,1:7``, from ``next``.
    """

    records: tuple[TopicRecord, ...]
    next: Annotated[Mapping[str, int], Doc("Offset after the last record, by partition.")]
    has_more: Annotated[bool, Doc("Whether there are further records now.")]


class RecordQuery(NamedTuple):
    """Which records to return, as texts of a query."""

    partition: Annotated[str, Doc("Only this partition; by default all.")] = ""
    offset: Annotated[str, Doc("The first offset, `earliest` (default) or `latest`.")] = "earliest"
    last: Annotated[str, Doc("Start so many offsets before the end of each partition.")] = ""
    positions: Annotated[
        str, Doc("Partitions with their first offsets, e.g. `0:5,1:7`, from `next`.")
    ] = ""
    limit: Annotated[str, Doc(f"Maximum number of records; by default {LIMIT}, or `wait`.")] = ""
    wait: Annotated[str, Doc("Number of records to wait for, also for the topic.")] = "0"
    timeout_ms: Annotated[str, Doc(f"Real milliseconds to wait; by default {WAIT_MS}.")] = str(
        WAIT_MS
    )
    isolation: Annotated[str, Doc("`read_committed` (default) or `read_uncommitted`.")] = (
        "read_committed"
    )
    encoding: Annotated[
        str, Doc("`text` (default): base64 only for what is not UTF-8; `base64`: all of it.")
    ] = "text"


RECORD_OPERATIONS: Final = Operations()


# Producing ------------------------------------------------------------------------------------


@RECORD_OPERATIONS.add(
    "POST",
    "/v1/topics/{name}/records",
    status=201,
    errors={**_NO_TOPIC, 409: "The topic is internal.", **UNAVAILABLE},
    example={"records": [{"key": "7", "value": "paid"}, {"value_base64": "AP8="}]},
    body_max_bytes=RECORDS_BODY_MAX_BYTES,
)
async def produce_records(broker: ControlledBroker, name: str, new: NewRecords) -> ProducedRecords:
    """Produce records to a topic, which is created if clients may do so; respond when appended."""
    topic = broker.image.topics.get(name)
    if topic is None:
        if not broker.env.settings[AUTO_CREATE_TOPICS_ENABLE]:
            await get_topic(broker, name)  # Raises NotFound.
        await create_topic(broker, TopicCreation(name))
        topic = broker.image.topics[name]
    if topic.internal:
        text = f"{name} is an internal topic, which only the broker may write"
        raise Conflict("INVALID_TOPIC_EXCEPTION", text)
    batches = _batches(new.records, len(topic.partitions), broker.env.clock.wall_ms())
    positions: dict[int, RecordPosition] = {}
    async with broker.state(ChangeLock).lock:
        for batch in batches:
            content = build_batch([record for _, record in batch.records])
            request = RecordsAppend(name, batch.partition, content)
            appended: BatchAppended = await _request(broker, name, batch.partition, request)
            if appended.error is not ErrorCode.NONE:
                raise ApiError(
                    appended.error.name,
                    f"{name}-{batch.partition} rejects a record: {appended.text};",
                    f"{len(positions)} of {len(new.records)} records were produced before.",
                )
            for delta, (place, _) in enumerate(batch.records):
                offset = appended.base_offset + delta
                positions[place] = RecordPosition(batch.partition, offset)
    return ProducedRecords(tuple(positions[place] for place in sorted(positions)))


class _Batch(NamedTuple):
    """Records for one partition, each with its place in the request."""

    partition: int
    records: list[tuple[int, Record]]


def _batches(new: Sequence[NewRecord], partitions: int, now_ms: int) -> list[_Batch]:
    """Decode records and group them. Raises `InvalidJson`, which lists all faults."""
    faults: list[Fault] = []
    by_partition: dict[int, list[tuple[int, Record]]] = defaultdict(list)
    turn = 0
    for place, record in enumerate(new):
        path = f"records.{place}"
        key = _content(record.key, record.key_base64, f"{path}.key", faults)
        value = _content(record.value, record.value_base64, f"{path}.value", faults)
        headers = tuple(
            (header.key, _content(header.value, header.value_base64, f"{path}.headers", faults))
            for header in record.headers
        )
        if record.partition is not None:
            chosen = record.partition
            if chosen >= partitions:
                text = f"must be below {partitions}, the topic's number of partitions"
                faults.append(Fault(f"{path}.partition", text))
        elif key is not None:
            chosen = partition_of(key, partitions)
        else:
            chosen, turn = turn % partitions, turn + 1
        timestamp = now_ms if record.timestamp_ms is None else record.timestamp_ms
        by_partition[chosen].append((place, Record(0, timestamp, key, value, headers)))
    if faults:
        raise InvalidJson(faults[:20])
    return [
        _Batch(index, batch)
        for index, records in by_partition.items()
        for batch in _in_batches(records)
    ]


def _in_batches(records: list[tuple[int, Record]]) -> Iterator[list[tuple[int, Record]]]:
    batch: list[tuple[int, Record]] = []
    size = 0
    for place, record in records:
        added = _size(record)
        if batch and size + added > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append((place, record))
        size += added
    yield batch


def _content(text: str | None, base64: str | None, path: str, faults: list[Fault]) -> bytes | None:
    if text is not None and base64 is not None:
        faults.append(Fault(path, "is given as text and as base64"))
    if base64 is not None:
        try:
            return b64decode(base64, validate=True)
        except ValueError:
            faults.append(Fault(f"{path}_base64", "is not base64"))
            return None
    # Lone surrogates are rejected: no client could send them.
    try:
        return None if text is None else text.encode()
    except UnicodeEncodeError:
        faults.append(Fault(path, "is not valid Unicode; give it as base64"))
        return None


# Reading --------------------------------------------------------------------------------------


class _Wanted(NamedTuple):
    """A query of records, checked."""

    partition: int | None
    offset: int | None
    """None is the end of each partition."""
    last: int | None
    positions: Mapping[int, int]
    limit: int
    wait: int
    timeout_ms: int
    committed: bool
    base64: bool


@RECORD_OPERATIONS.add(
    "GET",
    "/v1/topics/{name}/records",
    errors={404: "There is no topic with this name.", **TIMED_OUT, **UNAVAILABLE},
)
async def list_records(broker: ControlledBroker, name: str, query: RecordQuery) -> RecordList:
    """Return records of a topic; wait for them: `?wait=…&timeout_ms=…`."""
    wanted = _checked(query)
    problem = name_problem(name)
    if wanted.wait and problem is not None:
        text = f"Topic name {name!r} is invalid: {problem}."
        raise ApiError("INVALID_TOPIC_EXCEPTION", text)
    reading = _Reading(broker, name, wanted)
    clock = broker.env.clock
    deadline = clock.real_s() + wanted.timeout_ms / 1000
    while True:
        if name in broker.image.topics or not wanted.wait:
            await reading.read_available()
        if reading.is_complete:
            return reading.answer()
        if clock.real_s() >= deadline:
            raise reading.timed_out()
        await clock.sleep_real(POLL_S)


class _Reading:
    """The records that one request has read so far."""

    def __init__(self, broker: ControlledBroker, name: str, wanted: _Wanted) -> None:
        self._broker = broker
        self._name = name
        self._wanted = wanted
        self._positions: dict[int, int] | None = None
        """The next offset of each partition; None before the topic was found."""
        self._ends: dict[int, int] = {}
        self._found: dict[int, list[Record]] = defaultdict(list)
        self._count = self._size = 0

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing to wait for."""
        return self._count >= self._wanted.wait or self._is_full

    @property
    def _is_full(self) -> bool:
        return self._count >= self._wanted.limit or self._size >= ANSWER_MAX_BYTES

    async def read_available(self) -> None:
        """Read until the end of each partition, or until the answer is full."""
        if self._positions is None:
            self._positions = _start(await get_topic(self._broker, self._name), self._wanted)
        progress = True
        while progress and not self._is_full:
            progress = False
            for worker, offsets in self._by_worker().items():
                request = RecordsRead(self._name, offsets, _READ_BYTES, self._wanted.committed)
                answers = await self._broker.publisher.request_all(request, [worker])
                if worker not in answers:
                    raise Unavailable("BROKER_NOT_AVAILABLE", f"{worker} is being restarted")
                for index, read in answers[worker].items():
                    progress |= await self._take(index, read)

    def _by_worker(self) -> dict[str, dict[int, int]]:
        """The next offsets of partitions that may have records, by the worker that owns them."""
        assert self._positions is not None
        workers = self._broker.workers
        by_worker: dict[str, dict[int, int]] = defaultdict(dict)
        for index, offset in self._positions.items():
            owner = workers[partition_owner(self._name, index, len(workers))]
            by_worker[owner][index] = offset
        return by_worker

    async def _take(self, index: int, read: ReadRecords) -> bool:
        """Add records of one partition; return whether there were any, or control records."""
        assert self._positions is not None
        self._ends[index] = read.end
        self._positions[index] = max(self._positions[index], read.offset)
        if self._is_full or not read.batches:
            return False
        decode = partial(_decode, read, self._wanted.limit - self._count, self._size)
        try:
            records, position = await self._broker.scope.run_in_thread(decode)
        except DecodeError as error:
            text = f"records of {self._name}-{index} can't be read: {error}"
            raise Conflict("CORRUPT_MESSAGE", text) from None
        self._found[index] += records
        self._count += len(records)
        self._size += sum(map(_size, records))
        is_further = position > self._positions[index]
        self._positions[index] = position
        return is_further

    def answer(self) -> RecordList:
        """Return the records, and where to continue."""
        positions = self._positions or {}
        return RecordList(
            tuple(self._views()),
            {str(index): offset for index, offset in positions.items()},
            any(offset < self._ends.get(index, 0) for index, offset in positions.items()),
        )

    def _views(self) -> Iterator[TopicRecord]:
        streams = [
            [(record.timestamp, index, record) for record in records]
            for index, records in sorted(self._found.items())
        ]
        # Keeps the order of each partition, also if its timestamps are not in order.
        for _, index, record in heapq.merge(*streams, key=lambda item: item[:2]):
            yield _view(index, record, base64=self._wanted.base64)

    def timed_out(self) -> ApiError:
        """Describe what was there instead of what was awaited."""
        wanted = self._wanted
        awaited = f"{wanted.wait} records of topic {self._name!r} were awaited for"
        text = f"{awaited} {wanted.timeout_ms} ms, and there are {self._count}."
        if self._positions is None:
            hint = "There is no topic with this name: does the application use this broker?"
        elif not self._count:
            hint = "The topic has no record from there on: does the application use this broker?"
        else:
            views = list(self._views())[-SHOWN_RECORDS:]
            hint = "The last: " + ", ".join(map(_shown, views)) + "."
        return ApiError("REQUEST_TIMED_OUT", text, hint, status=408)


def _start(topic: TopicView, wanted: _Wanted) -> dict[int, int]:
    """Return the first offset of each partition to read. Raises `InvalidJson`."""
    known = {partition.partition: partition for partition in topic.partitions}
    given = wanted.positions or ({} if wanted.partition is None else {wanted.partition: 0})
    for index in given:
        if index not in known:
            text = f"topic {topic.name} has partitions 0 to {len(known) - 1}, not {index}"
            raise InvalidJson([Fault("positions" if wanted.positions else "partition", text)])
    if wanted.positions:
        return dict(wanted.positions)
    starts = {}
    for index in given or known:
        end = known[index].high_watermark
        if wanted.last is not None:
            starts[index] = max(end - wanted.last, 0)
        else:
            starts[index] = end if wanted.offset is None else wanted.offset
    return starts


def _decode(read: ReadRecords, count_max: int, size: int) -> tuple[list[Record], int]:
    """Return records from the offset on, without control and aborted ones, and the next offset."""
    records: list[Record] = []
    position = read.offset
    view = memoryview(read.batches)
    for start, header in iter_batches(view):
        skipped = header.is_control or (
            header.is_transactional
            and any(
                producer_id == header.producer_id and first <= header.base_offset <= last
                for producer_id, first, last in read.aborted
            )
        )
        if not skipped:
            for record in iter_records(view[start : start + header.size]):
                if record.offset < read.offset:
                    continue
                if len(records) >= count_max or size >= ANSWER_MAX_BYTES:
                    return records, record.offset
                records.append(record)
                size += _size(record)
                position = record.offset + 1
        position = max(position, header.next_offset)
    return records, position


def _size(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def _view(index: int, record: Record, *, base64: bool) -> TopicRecord:
    return TopicRecord(
        index,
        record.offset,
        record.timestamp,
        *_encoded(record.key, base64=base64),
        *_encoded(record.value, base64=base64),
        tuple(
            RecordHeader(name, *_encoded(value, base64=base64)) for name, value in record.headers
        ),
    )


def _encoded(content: bytes | None, *, base64: bool) -> tuple[str | None, str | None]:
    """Return bytes as text and None, or None and base64."""
    if content is None:
        return None, None
    if not base64:
        try:
            return bytes(content).decode(), None
        except UnicodeDecodeError:
            pass
    return None, b64encode(content).decode()


def _shown(record: TopicRecord) -> str:
    key = "" if (record.key or record.key_base64) is None else f"{record.key or '(bytes)'}: "
    value = record.value if record.value_base64 is None else "(bytes)"
    text = f"{key}{'null' if value is None else value}"
    if len(text) > SHOWN_CHARACTERS:
        text = f"{text[:SHOWN_CHARACTERS]}…"
    return f"{record.partition}@{record.offset} {text!r}"


# Requests -------------------------------------------------------------------------------------


def _checked(query: RecordQuery) -> _Wanted:
    """Check a query. Raises `InvalidJson`, which lists all faults."""
    faults: list[Fault] = []

    def number(name: str, highest: int) -> int | None:
        text = getattr(query, name)
        return whole_number(name, text, highest, faults) if text else None

    if sum(bool(given) for given in (query.positions, query.last, query.offset != "earliest")) > 1:
        faults.append(Fault("positions", "only one of positions, last and offset can be given"))
    if query.positions and query.partition:
        faults.append(Fault("partition", "can't be given with positions"))
    offset: int | None = 0
    if query.offset == "latest":
        offset = None
    elif query.offset != "earliest":
        offset = number("offset", _OFFSET_MAX)
    wait = number("wait", RECORDS_MAX) or 0
    limit = number("limit", RECORDS_MAX)
    if limit is not None and limit < wait:
        faults.append(Fault("limit", f"is less than wait, {wait}"))
    timeout_ms = number("timeout_ms", WAIT_MS_MAX)
    wanted = _Wanted(
        number("partition", _PARTITION_MAX),
        offset,
        number("last", _OFFSET_MAX),
        _positions(query.positions, faults),
        max(wait, LIMIT) if limit is None else limit,
        wait,
        WAIT_MS if timeout_ms is None else timeout_ms,
        _one_of("isolation", query.isolation, _ISOLATION_LEVELS, faults) == _ISOLATION_LEVELS[0],
        _one_of("encoding", query.encoding, _ENCODINGS, faults) == "base64",
    )
    if faults:
        raise InvalidJson(faults)
    return wanted


def _positions(text: str, faults: list[Fault]) -> dict[int, int]:
    if not text:
        return {}
    if _POSITIONS.fullmatch(text) is None:
        faults.append(Fault("positions", "must be partition:offset,…, e.g. 0:5,1:7"))
        return {}
    pairs = (pair.split(":") for pair in text.split(","))
    return {int(index): min(int(offset), _OFFSET_MAX) for index, offset in pairs}


def _one_of(name: str, text: str, known: Sequence[str], faults: list[Fault]) -> str:
    if text not in known:
        advice = did_you_mean(text, known)
        faults.append(Fault(name, f"must be one of {', '.join(known)}{advice}"))
    return text


async def _request(
    broker: ControlledBroker, topic: str, partition: int, request: RecordsAppend
) -> BatchAppended:
    worker = broker.workers[partition_owner(topic, partition, len(broker.workers))]
    try:
        answer: BatchAppended = await broker.publisher.request(worker, request)
    except PeerLost:
        text = f"{worker} is being restarted"
        raise Unavailable("BROKER_NOT_AVAILABLE", text, "The record may be appended.") from None
    return answer
