"""The one schema of activity events: every field with its type, its unit and its meaning.

Owns names, types and the version that says which of them an event has; it must never know who
writes events or what reads them, so that a broker without Spark and a pipeline without a broker
both import it. Invariant: an event of one version has exactly the fields of its kind given here;
a change of meaning, a field more or a field less is a new version. Kafka has no such topic; the
figures are those of ``RequestMetrics``, ``ClientQuotaManager`` and ``ConnectionQuotas``.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Final, NamedTuple

VERSION: Final = 1
"""Of the schema below; ``version`` of every event."""

TOPIC: Final = "__minibroker_activity"
"""Where a broker writes its events: JSON objects, one a record."""


class EventKind(StrEnum):
    """What an event is about; ``kind`` of every event."""

    REQUEST = "request"
    CONNECTION = "connection"
    DROPPED = "dropped"
    """Not an event that was seen, but that so many of them could not be written."""


class Happened(StrEnum):
    """What happened to a connection; ``happened`` of its events."""

    ACCEPTED = "accepted"
    """It came: the first event of each; the rates of broker and listener counted it just now, and
    that of its address, too, unless it is delayed."""
    DELAYED = "delayed"
    """It waits for its turn, because of a rate or because there are too many."""
    HELD = "held"
    """It is kept back for its address's sake, which came too fast."""
    ADMITTED = "admitted"
    """It was delayed or held, and is let in: the rate of its address counted it just now."""
    REFUSED = "refused"
    CLOSED = "closed"


class Type(Enum):
    """Of a field; the value is the name of the type in Spark."""

    INT = "int"
    LONG = "bigint"
    DOUBLE = "double"
    TEXT = "string"
    FLAG = "boolean"
    CHECK = "struct"
    """A look at one quota: the fields in ``CHECK_FIELDS``."""


class Field(NamedTuple):
    """One field. ``unit`` is empty where there is none; one that ``may_lack`` is null, or left
    out of the JSON, in events to which it doesn't apply.
    """

    name: str
    type: Type
    unit: str
    kinds: frozenset[EventKind]
    may_lack: bool
    meaning: str


CHECK_FIELDS: Final = (
    Field("user", Type.TEXT, "", frozenset(EventKind), False,
          "user whose quota it is, percent-encoded as in paths; empty if it is only a client's"),
    Field("client_id", Type.TEXT, "", frozenset(EventKind), False,
          "client-id whose quota it is; empty if it is only a user's"),
    Field("rate", Type.DOUBLE, "as the bound", frozenset(EventKind), False,
          "rate measured after this request was recorded; tokens left for mutations, 0 without a "
          "bound"),
    Field("bound", Type.DOUBLE, "bytes/s, %, changes/s", frozenset(EventKind), True,
          "quota in force; null if the entity had none"),
    Field("throttle_ms", Type.INT, "ms", frozenset(EventKind), False,
          "delay that this quota alone asked for"),
    Field("clock_ms", Type.LONG, "ms", frozenset(EventKind), False,
          "when it counted this request, on the broker's own clock; differs from the event's with "
          "quota.throttle.mode=delay, and for mutations, which the controller counts"),
)  # fmt: skip

_ALL: Final = frozenset(EventKind)
_SEEN: Final = frozenset({EventKind.REQUEST, EventKind.CONNECTION})
_REQUEST: Final = frozenset({EventKind.REQUEST})
_CONNECTION: Final = frozenset({EventKind.CONNECTION})
_DROPPED: Final = frozenset({EventKind.DROPPED})

FIELDS: Final = (
    Field("version", Type.INT, "", _ALL, False, "of the schema"),
    Field("kind", Type.TEXT, "", _ALL, False, "`request`, `connection` or `dropped`"),
    Field("broker", Type.INT, "", _ALL, False, "`broker.id`"),
    Field("started_us", Type.LONG, "µs since 1970 UTC", _ALL, False,
          "when the broker was started, by the machine's clock: never twice the same, and what was "
          "counted before is not counted on"),
    Field("sequence", Type.LONG, "", _ALL, False,
          "orders a broker's events: never given twice, not even over restarts"),
    Field("time_us", Type.LONG, "µs since 1970 UTC", _ALL, False,
          "when it was decided: quotas checked, or a connection's fate settled"),
    Field("clock_ms", Type.LONG, "ms", _ALL, False,
          "the same on the broker's own clock, by which quotas count"),
    Field("sample", Type.DOUBLE, "0 to 1", _SEEN, False,
          "share of connections that are written: figures are to be divided by it"),
    Field("listener", Type.TEXT, "", _SEEN, False, "name of the listener"),
    Field("connection", Type.LONG, "", _SEEN, False,
          "number of the connection, unique among a broker's until it restarts"),
    Field("ip", Type.TEXT, "", _SEEN, False, "address of the client"),
    Field("user", Type.TEXT, "", _REQUEST, True, "principal's name, as it authenticated"),
    Field("client_id", Type.TEXT, "", _REQUEST, True, "as the client sent it; empty if none"),
    Field("api_key", Type.INT, "", _REQUEST, True, "Kafka's number of the API"),
    Field("api_version", Type.INT, "", _REQUEST, True, "version it was sent in"),
    Field("request_bytes", Type.LONG, "bytes", _REQUEST, True,
          "request with its header, without the length before it; what a producer's quota counts"),
    Field("response_bytes", Type.LONG, "bytes", _REQUEST, True,
          "response as it would have been without a throttle, without length and header; with 4 "
          "more it is what a consumer's quota counts"),
    Field("records", Type.LONG, "records", _REQUEST, True,
          "sent to be appended; null for APIs other than Produce"),
    Field("mutations", Type.LONG, "partitions", _REQUEST, True,
          "partitions to be created or deleted, as controller_mutation_rate counts, those refused "
          "among them; null without"),
    Field("mutations_refused", Type.LONG, "partitions", _REQUEST, True,
          "those of them that the quota refused, which it did not count; topic by topic, so the "
          "others came before them"),
    Field("strict", Type.FLAG, "", _REQUEST, True,
          "whether mutations above the quota are refused rather than held; null without"),
    Field("exempt", Type.FLAG, "", _REQUEST, True,
          "whether no request_percentage holds it: other brokers' requests, acks=0"),
    Field("queue_ns", Type.LONG, "ns", _REQUEST, True, "waiting for I/O workers"),
    Field("network_ns", Type.LONG, "ns", _REQUEST, True, "worked by the network processor"),
    Field("io_ns", Type.LONG, "ns", _REQUEST, True, "worked by I/O workers"),
    Field("total_ns", Type.LONG, "ns", _REQUEST, True,
          "from the request read to the response written"),
    Field("checked_ns", Type.LONG, "ns", _REQUEST, True,
          "worked time that request_percentage counted before it was checked"),
    Field("late_ns", Type.LONG, "ns", _REQUEST, True,
          "worked time that it counted afterwards, without a check"),
    Field("late_clock_ms", Type.LONG, "ms", _REQUEST, True,
          "when that was, on the broker's own clock"),
    Field("produce", Type.CHECK, "", _REQUEST, True, "producer_byte_rate, if it was looked at"),
    Field("fetch", Type.CHECK, "", _REQUEST, True, "consumer_byte_rate, if it was looked at"),
    Field("request", Type.CHECK, "", _REQUEST, True, "request_percentage, if it was looked at"),
    Field("mutation", Type.CHECK, "", _REQUEST, True,
          "controller_mutation_rate, if it was looked at"),
    Field("ordinal", Type.LONG, "", _REQUEST, True,
          "place among all that was counted for those who share its quotas, in the order in which "
          "it was, whichever process did: that of bytes or changes, else of `checked_ns`; about "
          "a thousand a millisecond of the broker's own clock; null if nothing was looked at"),
    Field("time_ordinal", Type.LONG, "", _REQUEST, True,
          "the same of `checked_ns`, where that is another: others share it, or it was counted "
          "later"),
    Field("back_ordinal", Type.LONG, "", _REQUEST, True,
          "the same of a fetch's bytes that were given back, as it was held"),
    Field("late_ordinal", Type.LONG, "", _REQUEST, True, "the same of `late_ns`"),
    Field("throttle_ms", Type.INT, "ms", _REQUEST, True,
          "how long its sender was held: the largest of what the quotas asked for (for mutations "
          "less what has passed since), or with quota.throttle.mode=delay the sum"),
    Field("error_code", Type.INT, "", _REQUEST, True,
          "of the response, or the first one in it; 0 if none"),
    Field("happened", Type.TEXT, "", _CONNECTION, True,
          "`accepted`, then perhaps `delayed`, `held` and `admitted`; at last `refused` or "
          "`closed`"),
    Field("reason", Type.TEXT, "", _CONNECTION, True,
          "why, as in the label `reason` of closed connections, or the setting that it waits for"),
    Field("delay_ms", Type.INT, "ms", _CONNECTION, True,
          "how long one that is delayed or held waits; 0 where it waits for something else than "
          "time, null for other events"),
    Field("dropped", Type.LONG, "events", _DROPPED, True,
          "events that were not written since the last such event, because it could not keep up"),
)  # fmt: skip
"""All fields in the order of the columns of the activity table."""
