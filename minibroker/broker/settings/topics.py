"""Topic configs and the broker settings that are their defaults.

Owns the declarations of topic configs and the precedence of topic overrides, broker settings and
defaults; it must never know which topics exist.  The invariant: a topic config obeys the same
constraints whether it comes from CreateTopics, the config store or a properties file.
Echoes Kafka's ``LogConfig`` and ``ServerTopicConfigSynonyms``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from minibroker.broker.settings import definitions as broker
from minibroker.broker.settings.setting import (
    BOOLEAN,
    INT,
    LIST,
    LONG,
    TOPIC_SETTINGS,
    BadValueError,
    Scope,
    Setting,
    SettingType,
    Valid,
    at_least,
)
from minibroker.broker.settings.settings import Settings, unknown_name

T = TypeVar("T")

_MINUTE_MS = 60_000
_HOUR_MS = 3_600_000


class ConfigSynonym(NamedTuple):
    """A broker setting that is a topic config's default, and the factor between their units."""

    setting: Setting[Any]
    factor: int = 1


_SYNONYMS: dict[str, tuple[ConfigSynonym, ...]] = {}


def _topic(
    name: str,
    type: SettingType[T],  # noqa: A002 - as in `Setting`
    *synonyms: Setting[Any] | ConfigSynonym,
    doc: str,
    default: T | None = None,
    valid: Valid[Any] | None = None,
    no_effect: str = "",
) -> Setting[T]:
    """Declare a topic config; the last synonym defines its default and its constraint."""
    chain = tuple(s if isinstance(s, ConfigSynonym) else ConfigSynonym(s) for s in synonyms)
    if chain:
        last, factor = chain[-1]
        default = last.default if factor == 1 else last.default * factor
        valid = valid or last.valid
        no_effect = no_effect or last.no_effect
    assert default is not None, name
    _SYNONYMS[name] = chain
    return Setting(name, type, default, valid, scope=Scope.TOPIC, doc=doc, no_effect=no_effect)


# A table by hand: the row of a config starts with its constant and ends with its description.
# fmt: off

CLEANUP_POLICY = _topic("cleanup.policy", LIST, broker.LOG_CLEANUP_POLICY,
    doc="What happens to old segments: `delete` deletes them by retention; `compact` keeps the "
    "last value of each key.")
RETENTION_MS = _topic("retention.ms", LONG, broker.LOG_RETENTION_MS,
    ConfigSynonym(broker.LOG_RETENTION_MINUTES, _MINUTE_MS),
    ConfigSynonym(broker.LOG_RETENTION_HOURS, _HOUR_MS), valid=at_least(-1),
    doc="How long records are kept at least, in milliseconds; -1 means forever.")
RETENTION_BYTES = _topic("retention.bytes", LONG, broker.LOG_RETENTION_BYTES,
    doc="The size of a partition above which old segments are deleted, in bytes; -1 means "
    "unlimited.")
SEGMENT_BYTES = _topic("segment.bytes", INT, broker.LOG_SEGMENT_BYTES,
    doc="The size at which a partition rolls to a new segment file, in bytes.")
SEGMENT_MS = _topic("segment.ms", LONG, broker.LOG_ROLL_MS,
    ConfigSynonym(broker.LOG_ROLL_HOURS, _HOUR_MS),
    doc="The age at which a partition rolls to a new segment file, in milliseconds.")
SEGMENT_JITTER_MS = _topic("segment.jitter.ms", LONG, default=0, valid=at_least(0),
    no_effect="segments are rolled without jitter",
    doc="The maximum random jitter subtracted from `segment.ms`, in milliseconds.")
SEGMENT_INDEX_BYTES = _topic("segment.index.bytes", INT, broker.LOG_INDEX_SIZE_MAX_BYTES,
    doc="The maximum size of an index file, in bytes; a full index rolls the segment.")
INDEX_INTERVAL_BYTES = _topic("index.interval.bytes", INT, broker.LOG_INDEX_INTERVAL_BYTES,
    doc="How many bytes of records are appended between two index entries.")
FILE_DELETE_DELAY_MS = _topic("file.delete.delay.ms", LONG, broker.LOG_SEGMENT_DELETE_DELAY_MS,
    doc="How long the files of a deleted segment stay on disk, in milliseconds.")
FLUSH_MESSAGES = _topic("flush.messages", LONG, broker.LOG_FLUSH_INTERVAL_MESSAGES,
    doc="The number of records after which a partition is flushed to disk.")
FLUSH_MS = _topic("flush.ms", LONG, broker.LOG_FLUSH_INTERVAL_MS,
    broker.LOG_FLUSH_SCHEDULER_INTERVAL_MS, valid=at_least(0),
    doc="How long records may stay in memory before they are flushed to disk, in milliseconds.")
MAX_MESSAGE_BYTES = _topic("max.message.bytes", INT, broker.MESSAGE_MAX_BYTES,
    doc="The largest record batch, in bytes after compression.")
COMPRESSION_TYPE = _topic("compression.type", broker.COMPRESSION_TYPE.type, broker.COMPRESSION_TYPE,
    doc="The codec of stored batches; `producer` keeps the producer's codec.")
MESSAGE_TIMESTAMP_TYPE = _topic("message.timestamp.type", broker.LOG_MESSAGE_TIMESTAMP_TYPE.type,
    broker.LOG_MESSAGE_TIMESTAMP_TYPE,
    doc="Whether records have the producer's timestamp or the broker's append time.")
MESSAGE_TIMESTAMP_BEFORE_MAX_MS = _topic("message.timestamp.before.max.ms", LONG,
    broker.LOG_MESSAGE_TIMESTAMP_BEFORE_MAX_MS,
    doc="How far a record's timestamp may be before the broker's time, in milliseconds.")
MESSAGE_TIMESTAMP_AFTER_MAX_MS = _topic("message.timestamp.after.max.ms", LONG,
    broker.LOG_MESSAGE_TIMESTAMP_AFTER_MAX_MS,
    doc="How far a record's timestamp may be after the broker's time, in milliseconds.")
MIN_INSYNC_REPLICAS = _topic("min.insync.replicas", INT, broker.MIN_INSYNC_REPLICAS,
    doc="How many replicas must be in sync for acks=all; a partition never needs more than its "
    "one.")

DELETE_RETENTION_MS = _topic("delete.retention.ms", LONG, broker.LOG_CLEANER_DELETE_RETENTION_MS,
    doc="How long a compacted partition keeps tombstones, in milliseconds.")
MIN_COMPACTION_LAG_MS = _topic("min.compaction.lag.ms", LONG,
    broker.LOG_CLEANER_MIN_COMPACTION_LAG_MS,
    doc="How long a record stays uncompacted at least in a compacted partition, in milliseconds.")
MAX_COMPACTION_LAG_MS = _topic("max.compaction.lag.ms", LONG,
    broker.LOG_CLEANER_MAX_COMPACTION_LAG_MS,
    doc="The age at which a record becomes eligible for compaction at the latest, in milliseconds.")
MIN_CLEANABLE_DIRTY_RATIO = _topic("min.cleanable.dirty.ratio",
    broker.LOG_CLEANER_MIN_CLEANABLE_RATIO.type, broker.LOG_CLEANER_MIN_CLEANABLE_RATIO,
    doc="The ratio of dirty log to total log at which a partition is compacted.")
ERRORS_DEADLETTERQUEUE_GROUP_ENABLE = _topic("errors.deadletterqueue.group.enable", BOOLEAN,
    default=False, doc="Whether share groups may use the topic as their dead-letter queue.")
# ------------------------------------------------------------------- configs without any effect

UNCLEAN_LEADER_ELECTION_ENABLE = _topic("unclean.leader.election.enable", BOOLEAN,
    broker.UNCLEAN_LEADER_ELECTION_ENABLE,
    doc="Whether a replica that is not in sync may become the leader.")
PREALLOCATE = _topic("preallocate", BOOLEAN, broker.LOG_PREALLOCATE,
    doc="Whether segment files are allocated at full size when they are created.")
COMPRESSION_GZIP_LEVEL = _topic("compression.gzip.level", INT, broker.COMPRESSION_GZIP_LEVEL,
    doc="The gzip level for recompression by the broker.")
COMPRESSION_LZ4_LEVEL = _topic("compression.lz4.level", INT, broker.COMPRESSION_LZ4_LEVEL,
    doc="The lz4 level for recompression by the broker.")
COMPRESSION_ZSTD_LEVEL = _topic("compression.zstd.level", INT, broker.COMPRESSION_ZSTD_LEVEL,
    doc="The zstd level for recompression by the broker.")
_NO_REPLICATION = "one broker does not replicate"
_REPLICA = re.compile(r"\d+:\d+")
_REPLICAS: Valid[tuple[str, ...]] = Valid(
    "* or a list of partition:broker, as 0:1,1:2",
    lambda value: value == ("*",) or all(_REPLICA.fullmatch(item) for item in value),
)
LEADER_REPLICATION_THROTTLED_REPLICAS = _topic("leader.replication.throttled.replicas", LIST,
    default=(), valid=_REPLICAS, no_effect=_NO_REPLICATION,
    doc="Replicas whose replication is throttled at the leader.")
FOLLOWER_REPLICATION_THROTTLED_REPLICAS = _topic("follower.replication.throttled.replicas", LIST,
    default=(), valid=_REPLICAS, no_effect=_NO_REPLICATION,
    doc="Replicas whose replication is throttled at the follower.")

# fmt: on


class TopicConfig:
    """Effective config of one topic; ``config[RETENTION_MS]`` is an int in milliseconds."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: Setting[T]) -> T:
        value: T = self._values[key.name]
        return value


def synonyms_of(topic_setting: Setting[Any]) -> tuple[ConfigSynonym, ...]:
    """Return the broker settings that are defaults of a topic config, in order of precedence."""
    return _SYNONYMS[topic_setting.name]


def broker_value(settings: Settings, topic_setting: Setting[T]) -> T:
    """Return the default of a topic config from the broker's settings."""
    for synonym, factor in synonyms_of(topic_setting):
        value: Any = settings[synonym]
        if value is None:
            continue
        if factor != 1:
            # -1 means forever in every unit.
            value = value * factor if value >= 0 else -1
        found: T = value
        return found
    return topic_setting.default


def parse_topic_value(name: str, text: str | None) -> Any:
    """Parse a topic config; raise `BadValueError` with a complete sentence."""
    declared = TOPIC_SETTINGS.get(name)
    if declared is None:
        raise BadValueError(
            f"Unknown topic config name: {name}{unknown_name(name, TOPIC_SETTINGS)}"
        )
    if text is None:
        raise BadValueError(f"Null value not supported for topic config: {name}")
    try:
        return declared.parse(text)
    except BadValueError as error:
        raise BadValueError(f"Invalid value {text} for configuration {name}: {error}") from None


def topic_value(settings: Settings, overrides: Mapping[str, str], key: Setting[T]) -> T:
    """Return one effective config of a topic with these overrides, which are valid."""
    if key.name in overrides:
        return key.parse(overrides[key.name])
    return broker_value(settings, key)


def topic_config(settings: Settings, overrides: Mapping[str, str]) -> TopicConfig:
    """Return the effective config of a topic with these overrides, which are valid."""
    return TopicConfig(
        {name: topic_value(settings, overrides, key) for name, key in TOPIC_SETTINGS.items()}
    )
