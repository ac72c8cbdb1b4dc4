"""Settings of the activity topic.

Owns their declarations; like ``definitions``, it must never read a file or hold a configured value.
The invariant: with the defaults no events are recorded, at no cost.  Kafka has no counterpart.
"""

from __future__ import annotations

from minibroker.broker.settings.setting import setting
from minibroker.broker.settings.types import BOOLEAN, DOUBLE, LONG, STRING, Valid, at_least, one_of

RETENTION_BYTES_MIN = 8 * 1024 * 1024

FORMAT_ARROW = "arrow"
FORMAT_JSON = "json"

ACTIVITY_ENABLE = setting(
    "activity.enable",
    BOOLEAN,
    default=False,
    doc="Whether the broker writes an event for every request and every change of a connection to "
    "the topic `__minibroker_activity`. Requests never wait for events: events that cannot be "
    "written in time are dropped and counted. Not a Kafka setting.",
)
ACTIVITY_FORMAT = setting(
    "activity.format",
    STRING,
    default=FORMAT_ARROW,
    valid=one_of(FORMAT_ARROW, FORMAT_JSON),
    doc="How events are encoded in the topic. `arrow`: a record contains up to 1,000 events as an "
    "Apache Arrow IPC stream, which the pipeline reads several times as fast; it "
    "needs the package pyarrow. `json`: a record contains one event as a JSON object, which any "
    "consumer can show. Not a Kafka setting.",
)
ACTIVITY_SAMPLE = setting(
    "activity.sample",
    DOUBLE,
    default=1.0,
    valid=Valid("above 0 and at most 1", lambda share: 0 < share <= 1),
    doc="The share of connections whose events are written. For each connection, all events or "
    "none are written. Not a Kafka setting.",
)
ACTIVITY_RETENTION_BYTES = setting(
    "activity.retention.bytes",
    LONG,
    default=512 * 1024 * 1024,
    valid=at_least(RETENTION_BYTES_MIN),
    doc="The size of the topic above which the oldest events are deleted, checked every "
    "`log.retention.check.interval.ms`. It applies when the broker creates the topic; for an "
    "existing topic, change its `retention.bytes`. Not a Kafka setting.",
)
