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
from minibroker.broker.settings.setting import TOPIC_SETTINGS, Scope, Setting, setting
from minibroker.broker.settings.settings import Settings, unknown_name
from minibroker.broker.settings.types import (
    BOOLEAN,
    INT,
    LIST,
    LONG,
    BadValueError,
    SettingType,
    Valid,
    at_least,
)

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
    type: SettingType[T],  # noqa: A002 - as in `setting`
    doc: str,
    *synonyms: Setting[Any] | ConfigSynonym,
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
    return setting(
        name, type, default=default, scope=Scope.TOPIC, doc=doc, valid=valid, no_effect=no_effect
    )


CLEANUP_POLICY = _topic(
    "cleanup.policy",
    LIST,
    "What happens to old segments: `delete` deletes them by retention; `compact` keeps the last "
    "value of each key.",
    broker.LOG_CLEANUP_POLICY,
)
RETENTION_MS = _topic(
    "retention.ms",
    LONG,
    "How long records are kept at least, in milliseconds; -1 means forever.",
    broker.LOG_RETENTION_MS,
    ConfigSynonym(broker.LOG_RETENTION_MINUTES, _MINUTE_MS),
    ConfigSynonym(broker.LOG_RETENTION_HOURS, _HOUR_MS),
    valid=at_least(-1),
)
RETENTION_BYTES = _topic(
    "retention.bytes",
    LONG,
    "The size of a partition above which old segments are deleted, in bytes; -1 means unlimited.",
    broker.LOG_RETENTION_BYTES,
)
SEGMENT_BYTES = _topic(
    "segment.bytes",
    INT,
    "The size at which a partition rolls to a new segment file, in bytes.",
    broker.LOG_SEGMENT_BYTES,
)
SEGMENT_MS = _topic(
    "segment.ms",
    LONG,
    "The age at which a partition rolls to a new segment file, in milliseconds.",
    broker.LOG_ROLL_MS,
    ConfigSynonym(broker.LOG_ROLL_HOURS, _HOUR_MS),
)
SEGMENT_JITTER_MS = _topic(
    "segment.jitter.ms",
    LONG,
    "The maximum random jitter subtracted from `segment.ms`, in milliseconds.",
    default=0,
    valid=at_least(0),
    no_effect="segments are rolled without jitter",
)
SEGMENT_INDEX_BYTES = _topic(
    "segment.index.bytes",
    INT,
    "The maximum size of an index file, in bytes; a full index rolls the segment.",
    broker.LOG_INDEX_SIZE_MAX_BYTES,
)
INDEX_INTERVAL_BYTES = _topic(
    "index.interval.bytes",
    INT,
    "How many bytes of records are appended between two index entries.",
    broker.LOG_INDEX_INTERVAL_BYTES,
)
FILE_DELETE_DELAY_MS = _topic(
    "file.delete.delay.ms",
    LONG,
    "How long the files of a deleted segment stay on disk, in milliseconds.",
    broker.LOG_SEGMENT_DELETE_DELAY_MS,
)
FLUSH_MESSAGES = _topic(
    "flush.messages",
    LONG,
    "The number of records after which a partition is flushed to disk.",
    broker.LOG_FLUSH_INTERVAL_MESSAGES,
)
FLUSH_MS = _topic(
    "flush.ms",
    LONG,
    "How long records may stay in memory before they are flushed to disk, in milliseconds.",
    broker.LOG_FLUSH_INTERVAL_MS,
    broker.LOG_FLUSH_SCHEDULER_INTERVAL_MS,
    valid=at_least(0),
)
MAX_MESSAGE_BYTES = _topic(
    "max.message.bytes",
    INT,
    "The largest record batch, in bytes after compression.",
    broker.MESSAGE_MAX_BYTES,
)
COMPRESSION_TYPE = _topic(
    "compression.type",
    broker.COMPRESSION_TYPE.type,
    "The codec of stored batches; `producer` keeps the producer's codec.",
    broker.COMPRESSION_TYPE,
)
MESSAGE_TIMESTAMP_TYPE = _topic(
    "message.timestamp.type",
    broker.LOG_MESSAGE_TIMESTAMP_TYPE.type,
    "Whether records have the producer's timestamp or the broker's append time.",
    broker.LOG_MESSAGE_TIMESTAMP_TYPE,
)
MESSAGE_TIMESTAMP_BEFORE_MAX_MS = _topic(
    "message.timestamp.before.max.ms",
    LONG,
    "How far a record's timestamp may be before the broker's time, in milliseconds.",
    broker.LOG_MESSAGE_TIMESTAMP_BEFORE_MAX_MS,
)
MESSAGE_TIMESTAMP_AFTER_MAX_MS = _topic(
    "message.timestamp.after.max.ms",
    LONG,
    "How far a record's timestamp may be after the broker's time, in milliseconds.",
    broker.LOG_MESSAGE_TIMESTAMP_AFTER_MAX_MS,
)
MIN_INSYNC_REPLICAS = _topic(
    "min.insync.replicas",
    INT,
    "How many replicas must be in sync for acks=all; a partition never needs more than its one.",
    broker.MIN_INSYNC_REPLICAS,
)

DELETE_RETENTION_MS = _topic(
    "delete.retention.ms",
    LONG,
    "How long a compacted partition keeps tombstones, in milliseconds.",
    broker.LOG_CLEANER_DELETE_RETENTION_MS,
)
MIN_COMPACTION_LAG_MS = _topic(
    "min.compaction.lag.ms",
    LONG,
    "How long a record stays uncompacted at least in a compacted partition, in milliseconds.",
    broker.LOG_CLEANER_MIN_COMPACTION_LAG_MS,
)
MAX_COMPACTION_LAG_MS = _topic(
    "max.compaction.lag.ms",
    LONG,
    "The age at which a record becomes eligible for compaction at the latest, in milliseconds.",
    broker.LOG_CLEANER_MAX_COMPACTION_LAG_MS,
)
MIN_CLEANABLE_DIRTY_RATIO = _topic(
    "min.cleanable.dirty.ratio",
    broker.LOG_CLEANER_MIN_CLEANABLE_RATIO.type,
    "The ratio of dirty log to total log at which a partition is compacted.",
    broker.LOG_CLEANER_MIN_CLEANABLE_RATIO,
)
# ------------------------------------------------------------------- configs without any effect

UNCLEAN_LEADER_ELECTION_ENABLE = _topic(
    "unclean.leader.election.enable",
    BOOLEAN,
    "Whether a replica that is not in sync may become the leader.",
    broker.UNCLEAN_LEADER_ELECTION_ENABLE,
)
PREALLOCATE = _topic(
    "preallocate",
    BOOLEAN,
    "Whether segment files are allocated at full size when they are created.",
    broker.LOG_PREALLOCATE,
)
COMPRESSION_GZIP_LEVEL = _topic(
    "compression.gzip.level",
    INT,
    "The gzip level for recompression by the broker.",
    broker.COMPRESSION_GZIP_LEVEL,
)
COMPRESSION_LZ4_LEVEL = _topic(
    "compression.lz4.level",
    INT,
    "The lz4 level for recompression by the broker.",
    broker.COMPRESSION_LZ4_LEVEL,
)
COMPRESSION_ZSTD_LEVEL = _topic(
    "compression.zstd.level",
    INT,
    "The zstd level for recompression by the broker.",
    broker.COMPRESSION_ZSTD_LEVEL,
)
_NO_REPLICATION = "one broker does not replicate"
_REPLICA = re.compile(r"\d+:\d+")
_REPLICAS: Valid[tuple[str, ...]] = Valid(
    "* or a list of partition:broker, as 0:1,1:2",
    lambda value: value == ("*",) or all(_REPLICA.fullmatch(item) for item in value),
)
LEADER_REPLICATION_THROTTLED_REPLICAS = _topic(
    "leader.replication.throttled.replicas",
    LIST,
    "Replicas whose replication is throttled at the leader.",
    default=(),
    valid=_REPLICAS,
    no_effect=_NO_REPLICATION,
)
FOLLOWER_REPLICATION_THROTTLED_REPLICAS = _topic(
    "follower.replication.throttled.replicas",
    LIST,
    "Replicas whose replication is throttled at the follower.",
    default=(),
    valid=_REPLICAS,
    no_effect=_NO_REPLICATION,
)


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
