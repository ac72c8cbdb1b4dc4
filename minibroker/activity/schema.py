"""Schema of activity events: fields with type, unit and meaning.

Owns names, types and the version; it must never know the writer or the readers of events, so that a
broker without Spark and a pipeline without a broker can import it. Invariant: an event has exactly
the fields of its kind; a changed, added or removed field requires a new version. Kafka has no such
topic; the figures correspond to ``RequestMetrics``, ``ClientQuotaManager`` and
``ConnectionQuotas``.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Final, NamedTuple

VERSION: Final = 1
"""Version of this schema; ``version`` of every event."""

TOPIC: Final = "__minibroker_activity"
"""The topic of the events; each record is a JSON object."""


class EventKind(StrEnum):
    """Kind of an event; ``kind`` of every event."""

    REQUEST = "request"
    CONNECTION = "connection"
    DROPPED = "dropped"
    """Reports the number of events that could not be written."""


class Happened(StrEnum):
    """Type of a connection event; ``happened`` of these events."""

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


class Type(Enum):
    """Type of a field; the value is the name of the type in Spark."""

    INT = "int"
    LONG = "bigint"
    DOUBLE = "double"
    TEXT = "string"
    FLAG = "boolean"
    CHECK = "struct"
    """A quota check, with the fields in ``CHECK_FIELDS``."""


class Field(NamedTuple):
    """A field of an event.

    ``unit`` is empty if there is none. A field with ``may_lack`` is null, or omitted from the
    JSON, in events to which it does not apply.
    """

    name: str
    type: Type
    unit: str
    kinds: frozenset[EventKind]
    may_lack: bool
    meaning: str


CHECK_FIELDS: Final = (
    Field("user", Type.TEXT, "", frozenset(EventKind), False,
          "user of the quota, percent-encoded; empty if the quota is for a client-id only"),
    Field("client_id", Type.TEXT, "", frozenset(EventKind), False,
          "client-id of the quota; empty if the quota is for a user only"),
    Field("rate", Type.DOUBLE, "as the bound", frozenset(EventKind), False,
          "rate including this request; for mutations the remaining tokens, 0 without a bound"),
    Field("bound", Type.DOUBLE, "bytes/s, %, changes/s", frozenset(EventKind), True,
          "quota in force; null if there was none"),
    Field("throttle_ms", Type.INT, "ms", frozenset(EventKind), False,
          "throttle time of this quota alone"),
    Field("clock_ms", Type.LONG, "ms", frozenset(EventKind), False,
          "when the request was recorded, on the broker's clock; differs from the event's with "
          "quota.throttle.mode=delay, and for mutations, which the controller records"),
)  # fmt: skip

_ALL: Final = frozenset(EventKind)
_SEEN: Final = frozenset({EventKind.REQUEST, EventKind.CONNECTION})
_REQUEST: Final = frozenset({EventKind.REQUEST})
_CONNECTION: Final = frozenset({EventKind.CONNECTION})
_DROPPED: Final = frozenset({EventKind.DROPPED})

FIELDS: Final = (
    Field("version", Type.INT, "", _ALL, False, "version of the schema"),
    Field("kind", Type.TEXT, "", _ALL, False, "`request`, `connection` or `dropped`"),
    Field("broker", Type.INT, "", _ALL, False, "`broker.id`"),
    Field("started_us", Type.LONG, "µs since 1970 UTC", _ALL, False,
          "start time of the broker, on the system clock; unique for each start, after which "
          "all counters are empty"),
    Field("sequence", Type.LONG, "", _ALL, False,
          "position among the broker's events; unique even across restarts"),
    Field("time_us", Type.LONG, "µs since 1970 UTC", _ALL, False,
          "time of the decision: the quota check, or the connection event"),
    Field("clock_ms", Type.LONG, "ms", _ALL, False,
          "the same time on the broker's clock, which quotas use"),
    Field("sample", Type.DOUBLE, "0 to 1", _SEEN, False,
          "share of connections that are recorded; divide figures by it"),
    Field("listener", Type.TEXT, "", _SEEN, False, "name of the listener"),
    Field("connection", Type.LONG, "", _SEEN, False,
          "connection number, unique until the broker restarts"),
    Field("ip", Type.TEXT, "", _SEEN, False, "IP address of the client"),
    Field("user", Type.TEXT, "", _REQUEST, True, "name of the authenticated principal"),
    Field("client_id", Type.TEXT, "", _REQUEST, True, "client-id of the request; empty if none"),
    Field("api_key", Type.INT, "", _REQUEST, True, "Kafka's API key"),
    Field("api_version", Type.INT, "", _REQUEST, True, "API version of the request"),
    Field("request_bytes", Type.LONG, "bytes", _REQUEST, True,
          "size of the request with its header, without the length prefix; the size that "
          "producer_byte_rate records"),
    Field("response_bytes", Type.LONG, "bytes", _REQUEST, True,
          "size of the response as without a throttle, without length and header; "
          "consumer_byte_rate records 4 bytes more"),
    Field("records", Type.LONG, "records", _REQUEST, True,
          "records to append; null for APIs other than Produce"),
    Field("mutations", Type.LONG, "partitions", _REQUEST, True,
          "partitions to create or delete, as recorded by controller_mutation_rate, including "
          "rejected ones; null if none"),
    Field("mutations_refused", Type.LONG, "partitions", _REQUEST, True,
          "mutations that the quota rejected and did not record; checked topic by topic, so "
          "they come after the others"),
    Field("strict", Type.FLAG, "", _REQUEST, True,
          "whether mutations above the quota are rejected instead of throttled; null if none"),
    Field("exempt", Type.FLAG, "", _REQUEST, True,
          "whether the request is exempt from request_percentage: requests of brokers, acks=0"),
    Field("queue_ns", Type.LONG, "ns", _REQUEST, True, "time waiting for I/O workers"),
    Field("network_ns", Type.LONG, "ns", _REQUEST, True, "time spent by the network processor"),
    Field("io_ns", Type.LONG, "ns", _REQUEST, True, "time spent by I/O workers"),
    Field("total_ns", Type.LONG, "ns", _REQUEST, True,
          "time from reading the request to writing the response"),
    Field("checked_ns", Type.LONG, "ns", _REQUEST, True,
          "worked time that request_percentage recorded before its check"),
    Field("late_ns", Type.LONG, "ns", _REQUEST, True,
          "worked time that request_percentage recorded after its check"),
    Field("late_clock_ms", Type.LONG, "ms", _REQUEST, True,
          "when `late_ns` was recorded, on the broker's clock"),
    Field("produce", Type.CHECK, "", _REQUEST, True, "producer_byte_rate, if it was checked"),
    Field("fetch", Type.CHECK, "", _REQUEST, True, "consumer_byte_rate, if it was checked"),
    Field("request", Type.CHECK, "", _REQUEST, True, "request_percentage, if it was checked"),
    Field("mutation", Type.CHECK, "", _REQUEST, True,
          "controller_mutation_rate, if it was checked"),
    Field("ordinal", Type.LONG, "", _REQUEST, True,
          "order of recording among all requests that share its quotas, across processes: that "
          "of bytes or mutations, else of `checked_ns`; about 1,000 per millisecond of the "
          "broker's clock; null if no quota was checked"),
    Field("time_ordinal", Type.LONG, "", _REQUEST, True,
          "the ordinal of `checked_ns`, if it differs because other requests share that quota or "
          "it was recorded later"),
    Field("back_ordinal", Type.LONG, "", _REQUEST, True,
          "the ordinal of returning a throttled fetch's bytes to the quota"),
    Field("late_ordinal", Type.LONG, "", _REQUEST, True, "the ordinal of `late_ns`"),
    Field("throttle_ms", Type.INT, "ms", _REQUEST, True,
          "throttle of the client: the longest of its quotas (for mutations minus the time since "
          "the check), or with quota.throttle.mode=delay their sum"),
    Field("error_code", Type.INT, "", _REQUEST, True,
          "error code of the response, or the first error in it; 0 if none"),
    Field("happened", Type.TEXT, "", _CONNECTION, True,
          "`accepted`, then possibly `delayed`, `held` and `admitted`; finally `refused` or "
          "`closed`"),
    Field("reason", Type.TEXT, "", _CONNECTION, True,
          "reason, as in the label `reason` of closed connections, or the limit it waits for"),
    Field("delay_ms", Type.INT, "ms", _CONNECTION, True,
          "how long a `delayed` or `held` connection waits; 0 if it does not wait for a time, "
          "null for other events"),
    Field("dropped", Type.LONG, "events", _DROPPED, True,
          "events dropped since the last `dropped` event, because the recorder could not keep up"),
)  # fmt: skip
"""All fields in the order of the columns of the activity table."""
