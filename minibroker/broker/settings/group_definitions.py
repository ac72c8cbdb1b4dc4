"""Settings of groups and committed offsets.

Owns their declarations; like ``definitions``, it must never read a file or hold a configured value.
The invariant: names and units are Kafka's.  Echoes
``GroupCoordinatorConfig``.
"""

from __future__ import annotations

from minibroker.broker.settings.setting import setting
from minibroker.broker.settings.types import INT, INT_MAX, LONG, SHORT, at_least, between

GROUP_INITIAL_REBALANCE_DELAY_MS = setting(
    "group.initial.rebalance.delay.ms",
    INT,
    default=100,
    kafka_default=3000,
    valid=at_least(0),
    doc="How long a new group waits for more members before the first rebalance, in milliseconds.",
)
GROUP_MIN_SESSION_TIMEOUT_MS = setting(
    "group.min.session.timeout.ms",
    INT,
    default=6000,
    valid=at_least(1),
    doc="The minimum session timeout of a member, in milliseconds.",
)
GROUP_MAX_SESSION_TIMEOUT_MS = setting(
    "group.max.session.timeout.ms",
    INT,
    default=30 * 60 * 1000,
    valid=at_least(1),
    doc="The maximum session timeout of a member, in milliseconds.",
)
GROUP_MAX_SIZE = setting(
    "group.max.size",
    INT,
    default=INT_MAX,
    valid=at_least(1),
    doc="The maximum number of members of a group.",
)
OFFSETS_TOPIC_NUM_PARTITIONS = setting(
    "offsets.topic.num.partitions",
    INT,
    default=50,
    valid=between(1, 1000),
    doc="The number of partitions of `__consumer_offsets`. Groups are assigned to partitions by "
    "hash, so do not change it for an existing data directory.",
)
OFFSETS_TOPIC_REPLICATION_FACTOR = setting(
    "offsets.topic.replication.factor",
    SHORT,
    default=1,
    kafka_default=3,
    valid=at_least(1),
    doc="The number of replicas of `__consumer_offsets`.",
    no_effect="it always has one, because there is one broker; with Kafka's default of 3, groups "
    "would never work on a single broker",
)
OFFSETS_TOPIC_SEGMENT_BYTES = setting(
    "offsets.topic.segment.bytes",
    INT,
    default=100 * 1024 * 1024,
    valid=at_least(14),
    doc="The segment size of `__consumer_offsets`, in bytes.",
)
OFFSETS_RETENTION_MINUTES = setting(
    "offsets.retention.minutes",
    INT,
    default=7 * 24 * 60,
    valid=at_least(1),
    doc="How long the offsets of a group without members are kept, in minutes.",
)
OFFSETS_RETENTION_CHECK_INTERVAL_MS = setting(
    "offsets.retention.check.interval.ms",
    LONG,
    default=600_000,
    valid=at_least(1),
    doc="How often groups are checked for offsets to expire, in milliseconds.",
)
OFFSET_METADATA_MAX_BYTES = setting(
    "offset.metadata.max.bytes",
    INT,
    default=4096,
    valid=at_least(0),
    doc="The maximum size of the metadata of a committed offset, in bytes.",
)
