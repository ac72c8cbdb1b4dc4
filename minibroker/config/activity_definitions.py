"""The settings of the activity topic: whether a broker tells what it does, and how much of it.

Owns their declarations; like ``definitions``, of which it is a part, it must never read a file or
hold a value in force.  The invariant: without any of them nothing is told and nothing costs more.
No setting of Kafka's is like them.
"""

from __future__ import annotations

from minibroker.config.setting import setting
from minibroker.config.types import BOOLEAN, DOUBLE, LONG, Valid, at_least

RETENTION_BYTES_MIN = 8 * 1024 * 1024

ACTIVITY_ENABLE = setting(
    "activity.enable",
    BOOLEAN,
    default=False,
    doc="Whether every request and everything that happens to a connection is written to the topic "
    "`__minibroker_activity`, one record each. What cannot be written in time is dropped and "
    "counted; requests never wait for it. Not a Kafka setting.",
)
ACTIVITY_SAMPLE = setting(
    "activity.sample",
    DOUBLE,
    default=1.0,
    valid=Valid("above 0 and at most 1", lambda share: 0 < share <= 1),
    doc="The share of connections whose events are written, all or none of each connection's. Not "
    "a Kafka setting.",
)
ACTIVITY_RETENTION_BYTES = setting(
    "activity.retention.bytes",
    LONG,
    default=512 * 1024 * 1024,
    valid=at_least(RETENTION_BYTES_MIN),
    doc="The size at which the oldest events are dropped, as often as "
    "`log.retention.check.interval.ms` says. It is given to the topic when it is made; of one that "
    "exists change `retention.bytes`. Not a Kafka setting.",
)
