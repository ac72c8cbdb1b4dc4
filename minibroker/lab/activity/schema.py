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
