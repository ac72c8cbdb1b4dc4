"""Events between processes: plain tuples, cheapest to create and to serialize, and their JSON.

Owns the layout of events, the serialization of a chunk, and the text of an event, one record each.
It must never know when events occur, a clock, a topic or a process. Invariants: the first field of
an event is its time, by which events are sorted, and all fields are types of ``marshal``, so a
chunk takes a fraction of a microsecond per event; the fields of the JSON and their types and order
are those of ``activity.schema``, and fields that do not apply are omitted. A bounded number of
texts that many events share is cached. The JSON is assembled by hand, because the general encoder
takes several times as long. Chunks are for processes of one run only, because ``marshal`` differs
between Python versions.
"""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from enum import Enum, StrEnum
from json import dumps
from math import isfinite
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from minibroker_protocol.records import Record

# ------------------------------------ Schema of activity events: fields with type, unit and meaning
# Owns names, types and the version; it must never know the writer or the readers of events, so that
# a broker without Spark and a pipeline without a broker can import it. Invariant: an event has
# exactly the fields of its kind; a changed, added or removed field requires a new version. Kafka
# has no such topic; the figures correspond to ``RequestMetrics``, ``ClientQuotaManager`` and
# ``ConnectionQuotas``.


VERSION: Final = 1
"""Version of this schema; ``version`` of every event."""

TOPIC: Final = "__minibroker_activity"
"""The topic of the events, which the broker creates; each record is a JSON object."""


class ActivityKind(StrEnum):
    """Kind of an event; ``kind`` of every event."""

    REQUEST = "request"
    CONNECTION = "connection"
    DROPPED = "dropped"
    """Reports the number of events that could not be written."""


class ConnectionStep(StrEnum):
    """Step in the life of a connection; the field ``happened`` of connection events."""

    ACCEPTED = "accepted"
    """The first event of a connection. It is now recorded by the rates of the broker and the
    listener, and also by the per-IP rate unless it is delayed."""
    DELAYED = "delayed"
    """It waits because of a rate or a limit."""
    HELD = "held"
    """It is delayed by the per-IP rate."""
    ADMITTED = "admitted"
    """It is accepted after a delay, and now recorded by the per-IP rate."""
    REFUSED = "refused"
    CLOSED = "closed"


class ActivityType(Enum):
    """Type of a field; the value is the name of the type in Spark."""

    INT = "int"
    LONG = "bigint"
    DOUBLE = "double"
    TEXT = "string"
    FLAG = "boolean"
    CHECK = "struct"
    """A quota check, with the fields in ``CHECK_FIELDS``."""


class ActivityField(NamedTuple):
    """A field of an event.

    ``unit`` is empty if there is none. A field with ``may_lack`` is null, or omitted from the
    JSON, in events to which it does not apply.
    """

    name: str
    type: ActivityType
    unit: str
    kinds: frozenset[ActivityKind]
    may_lack: bool
    meaning: str


CHECK_FIELDS: Final = (
    ActivityField("user", ActivityType.TEXT, "", frozenset(ActivityKind), False,
          "user of the quota, percent-encoded; empty if the quota is for a client-id only"),
    ActivityField("client_id", ActivityType.TEXT, "", frozenset(ActivityKind), False,
          "client-id of the quota; empty if the quota is for a user only"),
    ActivityField("rate", ActivityType.DOUBLE, "as the bound", frozenset(ActivityKind), False,
          "rate including this request; for mutations the remaining tokens, 0 without a bound"),
    ActivityField("bound", ActivityType.DOUBLE,
          "bytes/s, %, changes/s", frozenset(ActivityKind), True,
          "quota in force; null if there was none"),
    ActivityField("throttle_ms", ActivityType.INT, "ms", frozenset(ActivityKind), False,
          "throttle time of this quota alone"),
    ActivityField("clock_ms", ActivityType.LONG, "ms", frozenset(ActivityKind), False,
          "when the request was recorded, on the broker's clock; differs from the event's with "
          "quota.throttle.mode=delay, and for mutations, which the controller records"),
)  # fmt: skip

_ALL: Final = frozenset(ActivityKind)
_SEEN: Final = frozenset({ActivityKind.REQUEST, ActivityKind.CONNECTION})
_REQUEST: Final = frozenset({ActivityKind.REQUEST})
_CONNECTION: Final = frozenset({ActivityKind.CONNECTION})
_DROPPED: Final = frozenset({ActivityKind.DROPPED})

FIELDS: Final = (
    ActivityField("version", ActivityType.INT, "", _ALL, False, "version of the schema"),
    ActivityField("kind", ActivityType.TEXT, "", _ALL, False,
          "`request`, `connection` or `dropped`"),
    ActivityField("broker", ActivityType.INT, "", _ALL, False, "`broker.id`"),
    ActivityField("started_us", ActivityType.LONG, "µs since 1970 UTC", _ALL, False,
          "start time of the broker, on the system clock; unique for each start, after which "
          "all counters are empty"),
    ActivityField("sequence", ActivityType.LONG, "", _ALL, False,
          "position among the broker's events; unique even across restarts"),
    ActivityField("time_us", ActivityType.LONG, "µs since 1970 UTC", _ALL, False,
          "time of the decision: the quota check, or the connection event"),
    ActivityField("clock_ms", ActivityType.LONG, "ms", _ALL, False,
          "the same time on the broker's clock, which quotas use"),
    ActivityField("sample", ActivityType.DOUBLE, "0 to 1", _SEEN, False,
          "share of connections that are recorded; divide figures by it"),
    ActivityField("listener", ActivityType.TEXT, "", _SEEN, False, "name of the listener"),
    ActivityField("connection", ActivityType.LONG, "", _SEEN, False,
          "connection number, unique until the broker restarts"),
    ActivityField("ip", ActivityType.TEXT, "", _SEEN, False, "IP address of the client"),
    ActivityField("user", ActivityType.TEXT, "", _REQUEST, True,
          "name of the authenticated principal"),
    ActivityField("client_id", ActivityType.TEXT, "", _REQUEST, True,
          "client-id of the request; empty if none"),
    ActivityField("api_key", ActivityType.INT, "", _REQUEST, True, "Kafka's API key"),
    ActivityField("api_version", ActivityType.INT, "", _REQUEST, True,
          "API version of the request"),
    ActivityField("request_bytes", ActivityType.LONG, "bytes", _REQUEST, True,
          "size of the request with its header, without the length prefix; the size that "
          "producer_byte_rate records"),
    ActivityField("response_bytes", ActivityType.LONG, "bytes", _REQUEST, True,
          "size of the response as without a throttle, without length and header; "
          "consumer_byte_rate records 4 bytes more"),
    ActivityField("records", ActivityType.LONG, "records", _REQUEST, True,
          "records to append; null for APIs other than Produce"),
    ActivityField("mutations", ActivityType.LONG, "partitions", _REQUEST, True,
          "partitions to create or delete, as recorded by controller_mutation_rate, including "
          "rejected ones; null if none"),
    ActivityField("mutations_refused", ActivityType.LONG, "partitions", _REQUEST, True,
          "mutations that the quota rejected and did not record; checked topic by topic, so "
          "they come after the others"),
    ActivityField("strict", ActivityType.FLAG, "", _REQUEST, True,
          "whether mutations above the quota are rejected instead of throttled; null if none"),
    ActivityField("exempt", ActivityType.FLAG, "", _REQUEST, True,
          "whether the request is exempt from request_percentage: requests of brokers, acks=0"),
    ActivityField("queue_ns", ActivityType.LONG, "ns", _REQUEST, True,
          "time waiting for I/O workers"),
    ActivityField("network_ns", ActivityType.LONG, "ns", _REQUEST, True,
          "time spent by the network processor"),
    ActivityField("io_ns", ActivityType.LONG, "ns", _REQUEST, True, "time spent by I/O workers"),
    ActivityField("total_ns", ActivityType.LONG, "ns", _REQUEST, True,
          "time from reading the request to writing the response"),
    ActivityField("checked_ns", ActivityType.LONG, "ns", _REQUEST, True,
          "worked time that request_percentage recorded before its check"),
    ActivityField("late_ns", ActivityType.LONG, "ns", _REQUEST, True,
          "worked time that request_percentage recorded after its check"),
    ActivityField("late_clock_ms", ActivityType.LONG, "ms", _REQUEST, True,
          "when `late_ns` was recorded, on the broker's clock"),
    ActivityField("produce", ActivityType.CHECK, "", _REQUEST, True,
          "producer_byte_rate, if it was checked"),
    ActivityField("fetch", ActivityType.CHECK, "", _REQUEST, True,
          "consumer_byte_rate, if it was checked"),
    ActivityField("request", ActivityType.CHECK, "", _REQUEST, True,
          "request_percentage, if it was checked"),
    ActivityField("mutation", ActivityType.CHECK, "", _REQUEST, True,
          "controller_mutation_rate, if it was checked"),
    ActivityField("ordinal", ActivityType.LONG, "", _REQUEST, True,
          "order of recording among all requests that share its quotas, across processes: that "
          "of bytes or mutations, else of `checked_ns`; about 1,000 per millisecond of the "
          "broker's clock; null if no quota was checked"),
    ActivityField("time_ordinal", ActivityType.LONG, "", _REQUEST, True,
          "the ordinal of `checked_ns`, if it differs because other requests share that quota or "
          "it was recorded later"),
    ActivityField("back_ordinal", ActivityType.LONG, "", _REQUEST, True,
          "the ordinal of returning a throttled fetch's bytes to the quota"),
    ActivityField("late_ordinal", ActivityType.LONG, "", _REQUEST, True,
          "the ordinal of `late_ns`"),
    ActivityField("throttle_ms", ActivityType.INT, "ms", _REQUEST, True,
          "throttle of the client: the longest of its quotas (for mutations minus the time since "
          "the check), or with quota.throttle.mode=delay their sum"),
    ActivityField("error_code", ActivityType.INT, "", _REQUEST, True,
          "error code of the response, or the first error in it; 0 if none"),
    ActivityField("happened", ActivityType.TEXT, "", _CONNECTION, True,
          "`accepted`, then possibly `delayed`, `held` and `admitted`; finally `refused` or "
          "`closed`"),
    ActivityField("reason", ActivityType.TEXT, "", _CONNECTION, True,
          "reason, as in the label `reason` of closed connections, or the limit it waits for"),
    ActivityField("delay_ms", ActivityType.INT, "ms", _CONNECTION, True,
          "how long a `delayed` or `held` connection waits; 0 if it does not wait for a time, "
          "null for other events"),
    ActivityField("dropped", ActivityType.LONG, "events", _DROPPED, True,
          "events dropped since the last `dropped` event, because the recorder could not keep up"),
)  # fmt: skip
"""All fields in the order of the columns of the activity table."""


UNWRITTEN_MAX: Final = 16_384
"""Events of one process that the recorder may hold unwritten; further ones wait in the process."""

ActivityClient: TypeAlias = tuple[str, int, str, str, str]
"""Listener, number of the connection, address, user, client-id."""

Peer: TypeAlias = tuple[str, int, str]
"""Listener, number of the connection, address."""

Check: TypeAlias = tuple[str, str, float, float | None, int, int]
"""A quota check: user, client-id, rate, quota, throttle in ms, time on the broker's clock."""

LaterTime: TypeAlias = tuple[int, int, int | None]
"""Time that was recorded after the response: nanoseconds, when on the broker's clock, ordinal."""

Ordinals: TypeAlias = tuple[int, int | None, int | None]
"""Ordinals of the first check, of the time check if it is separate, and of subtracted bytes."""

Request: TypeAlias = tuple[
    int,  # time_us
    int,  # clock_ms
    ActivityClient,
    int,  # api_key
    int,  # api_version
    int,  # request_bytes
    int,  # response_bytes
    int | None,  # records
    tuple[int, int, bool] | None,  # mutations, those refused, strict
    bool,  # exempt
    int,  # queue_ns
    int,  # network_ns
    int,  # io_ns
    int,  # total_ns
    int,  # checked_ns
    LaterTime | None,
    tuple[Check | None, Check | None, Check | None, Check | None] | None,
    # produce, fetch, request, mutation
    Ordinals | None,
    int,  # throttle_ms
    int,  # error_code
]

ConnectionActivity: TypeAlias = tuple[
    int,  # time_us
    int,  # clock_ms
    Peer,
    str,  # happened
    str | None,  # reason
    int | None,  # delay_ms
]

Dropped: TypeAlias = tuple[
    int,  # time_us
    int,  # clock_ms
    int,  # events that were dropped before this one
]
"""Created by the recorder only."""

ActivityEvent: TypeAlias = Request | ConnectionActivity
"""What processes send to the recorder."""

WrittenEvent: TypeAlias = Request | ConnectionActivity | Dropped
"""What the recorder writes."""

REQUEST_FIELDS: Final = 20
CONNECTION_ACTIVITY_FIELDS: Final = 6
DROPPED_FIELDS: Final = 3
"""Numbers of fields, which distinguish the kinds of events."""


def event_record(event: WrittenEvent, value: bytes) -> Record:
    """Return a record with the time of an event."""
    # Half the cost of creating one with keyword arguments.
    return Record._make((0, event[0] // 1000, None, value, ()))


def pack(events: Sequence[ActivityEvent]) -> bytes:
    """Serialize events as a chunk."""
    return marshal.dumps(list[Any](events))


def unpack(chunk: bytes) -> list[ActivityEvent]:
    """Return the events of a chunk that a process of this run has serialized."""
    events: list[ActivityEvent] = marshal.loads(chunk)  # noqa: S302 - packed by this broker
    return events


KEPT_MAX: Final = 4096
"""Cached texts of each kind."""

KEPT_CHARACTERS_MAX: Final = 1000
"""Longest text that is cached, because clients choose its content."""

Key = TypeVar("Key")
Text = TypeVar("Text")

_CHECKS: Final = ("produce", "fetch", "request", "mutation")
_FLAGS: Final = ("false", "true")


class JsonWriter:
    """The writer of one broker's events."""

    def __init__(self, broker: int, started_us: int, sample: float) -> None:
        """``started_us`` is the start of the broker."""
        about = f'"broker":{broker},"started_us":{started_us}'
        self._heads = {
            kind: f'{{"version":{VERSION},"kind":"{kind}",{about},"sequence":'
            for kind in ActivityKind
        }
        self._request_head = self._heads[ActivityKind.REQUEST]
        self._sample = number(sample)
        self._clients: dict[ActivityClient, str] = {}
        self._shares: dict[tuple[str, str, float | None], tuple[str, str]] = {}

    def records(self, events: Sequence[WrittenEvent], first_sequence: int) -> list[Record]:
        """Return the records of consecutive events, one for each."""
        write = self._event
        return [
            event_record(event, write(event, sequence).encode())
            for sequence, event in enumerate(events, first_sequence)
        ]

    def _event(self, event: WrittenEvent, sequence: int) -> str:
        if len(event) == CONNECTION_ACTIVITY_FIELDS:
            return self._connection_event(event, sequence)
        if len(event) == DROPPED_FIELDS:
            return self._dropped(event, sequence)
        return self._request(event, sequence)

    def _dropped(self, event: Dropped, sequence: int) -> str:
        time_us, clock_ms, count = event
        return (
            f'{self._heads[ActivityKind.DROPPED]}{sequence},"time_us":{time_us},'
            f'"clock_ms":{clock_ms},"dropped":{count}}}'
        )

    def _request(self, event: Request, sequence: int) -> str:
        (
            time_us, clock_ms, client, api_key, api_version, request_bytes, response_bytes, records,
            mutations, exempt, queue_ns, network_ns, io_ns, total_ns, checked_ns, later_time,
            checks, ordinals, throttle_ms, error_code,
        ) = event  # fmt: skip
        counted = "" if records is None else f',"records":{records}'
        if mutations is not None:
            requested, rejected, strict = mutations
            counted += f',"mutations":{requested},"mutations_refused":{rejected}'
            counted += f',"strict":{_FLAGS[strict]}'
        check_fields = (
            ""
            if later_time is None
            else f',"late_ns":{later_time[0]},"late_clock_ms":{later_time[1]}'
        )
        if checks is not None:
            for name, check in zip(_CHECKS, checks, strict=True):
                if check is not None:
                    check_fields += f',"{name}":{self._check(check)}'
        if ordinals is not None or later_time is not None:
            check_fields += _ordinal_fields(ordinals, later_time)
        return (
            f'{self._request_head}{sequence},"time_us":{time_us},"clock_ms":{clock_ms}'
            f'{self._clients.get(client) or self._client(client)},"api_key":{api_key},'
            f'"api_version":{api_version},"request_bytes":{request_bytes},'
            f'"response_bytes":{response_bytes}{counted},"exempt":{_FLAGS[exempt]},'
            f'"queue_ns":{queue_ns},"network_ns":{network_ns},"io_ns":{io_ns},'
            f'"total_ns":{total_ns},"checked_ns":{checked_ns}{check_fields},"throttle_ms":{throttle_ms},'
            f'"error_code":{error_code}}}'
        )

    def _connection_event(self, event: ConnectionActivity, sequence: int) -> str:
        time_us, clock_ms, peer, step, reason, delay_ms = event
        text = (
            f'{self._heads[ActivityKind.CONNECTION]}{sequence},"time_us":{time_us},'
            f'"clock_ms":{clock_ms}{self._peer(*peer)},"happened":"{step}"'
        )
        if reason is not None:
            text += f',"reason":{dumps(reason)}'
        if delay_ms is not None:
            text += f',"delay_ms":{delay_ms}'
        return text + "}"

    def _client(self, client: ActivityClient) -> str:
        listener, connection, ip, user, client_id = client
        text = self._peer(listener, connection, ip)
        text += f',"user":{dumps(user)},"client_id":{dumps(client_id)}'
        _keep(self._clients, client, text, len(text))
        return text

    def _peer(self, listener: str, connection: int, ip: str) -> str:
        return (
            f',"sample":{self._sample},"listener":{dumps(listener)},"connection":{connection},'
            f'"ip":{dumps(ip)}'
        )

    def _check(self, check: Check) -> str:
        user, client_id, rate, bound, throttle_ms, clock_ms = check
        share = user, client_id, bound
        before, after = self._shares.get(share) or self._share(share)
        return f'{before}{number(rate)}{after}{throttle_ms},"clock_ms":{clock_ms}}}'

    def _share(self, share: tuple[str, str, float | None]) -> tuple[str, str]:
        """Return the text before and after the rate of a quota entity."""
        user, client_id, bound = share
        before = f'{{"user":{dumps(user)},"client_id":{dumps(client_id)},"rate":'
        after = "" if bound is None else f',"bound":{number(bound)}'
        texts = before, f'{after},"throttle_ms":'
        _keep(self._shares, share, texts, len(before))
        return texts


def _ordinal_fields(ordinals: Ordinals | None, later_time: LaterTime | None) -> str:
    text = ""
    if ordinals is not None:
        first, time, taken_back = ordinals
        text = f',"ordinal":{first}'
        if time is not None:
            text += f',"time_ordinal":{time}'
        if taken_back is not None:
            text += f',"back_ordinal":{taken_back}'
    if later_time is not None and later_time[2] is not None:
        text += f',"late_ordinal":{later_time[2]}'
    return text


def _keep(texts: dict[Key, Text], key: Key, text: Text, characters: int) -> None:
    if characters <= KEPT_CHARACTERS_MAX:
        if len(texts) >= KEPT_MAX:
            texts.clear()
        texts[key] = text


def number(value: float) -> str:
    """Format a number with all digits; infinity becomes the largest number, as JSON has none."""
    if not isfinite(value):
        value = 1.7976931348623157e308 if value > 0 else -1.7976931348623157e308
    return repr(float(value))
