"""Settings of one topic, and which of the broker's settings stands in for each.

Owns the declarations of topic settings and how a topic's own values, the broker's and the
defaults combine; it must never know which topics exist.  The invariant: a value for a topic
passes the same rule whether it comes from CreateTopics, the config store or the broker's file.
Echoes Kafka's ``LogConfig`` and ``ServerTopicConfigSynonyms``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from minibroker.config import definitions as broker
from minibroker.config.setting import TOPIC_SETTINGS, Scope, Setting, setting
from minibroker.config.settings import Settings, unknown_name
from minibroker.config.types import (
    BOOLEAN,
    INT,
    LIST,
    LONG,
    BadValueError,
    SettingType,
    Valid,
    any_valid,
    at_least,
    between,
    equals,
)

T = TypeVar("T")

_MINUTE_MS = 60_000
_HOUR_MS = 3_600_000


class Synonym(NamedTuple):
    """A broker setting that stands in for a topic's, and what its unit is multiplied by."""

    setting: Setting[Any]
    factor: int = 1


_SYNONYMS: dict[str, tuple[Synonym, ...]] = {}


def _topic(
    name: str,
    type: SettingType[T],  # noqa: A002 - as in `setting`
    doc: str,
    *synonyms: Setting[Any] | Synonym,
    default: T | None = None,
    valid: Valid[Any] | None = None,
    no_effect: str = "",
) -> Setting[T]:
    """Declare a topic setting; its default and rule are those of its last broker synonym."""
    chain = tuple(s if isinstance(s, Synonym) else Synonym(s) for s in synonyms)
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
    "What happens to old segments: `delete` drops them by retention; `compact` alone keeps them.",
    broker.LOG_CLEANUP_POLICY,
)
RETENTION_MS = _topic(
    "retention.ms",
    LONG,
    "How long records are kept at least, in milliseconds; -1 keeps them for ever.",
    broker.LOG_RETENTION_MS,
    Synonym(broker.LOG_RETENTION_MINUTES, _MINUTE_MS),
    Synonym(broker.LOG_RETENTION_HOURS, _HOUR_MS),
)
RETENTION_BYTES = _topic(
    "retention.bytes",
    LONG,
    "How many bytes of a partition are kept; -1 sets no bound.",
    broker.LOG_RETENTION_BYTES,
)
SEGMENT_BYTES = _topic(
    "segment.bytes",
    INT,
    "The size at which a partition begins a new segment file, in bytes.",
    broker.LOG_SEGMENT_BYTES,
)
SEGMENT_MS = _topic(
    "segment.ms",
    LONG,
    "The age at which a partition begins a new segment file, in milliseconds.",
    broker.LOG_ROLL_MS,
    Synonym(broker.LOG_ROLL_HOURS, _HOUR_MS),
)
SEGMENT_JITTER_MS = _topic(
    "segment.jitter.ms",
    LONG,
    "How much rolling by age is spread in time, in milliseconds.",
    default=0,
    valid=at_least(0),
    no_effect="one broker has no rolling of others to avoid",
)
SEGMENT_INDEX_BYTES = _topic(
    "segment.index.bytes",
    INT,
    "The largest index file, in bytes; a full index begins a new segment.",
    broker.LOG_INDEX_SIZE_MAX_BYTES,
)
INDEX_INTERVAL_BYTES = _topic(
    "index.interval.bytes",
    INT,
    "How many bytes of records lie between two entries of an index.",
    broker.LOG_INDEX_INTERVAL_BYTES,
)
FILE_DELETE_DELAY_MS = _topic(
    "file.delete.delay.ms",
    LONG,
    "How long a segment's files stay after the segment was dropped, in milliseconds.",
    broker.LOG_SEGMENT_DELETE_DELAY_MS,
)
FLUSH_MESSAGES = _topic(
    "flush.messages",
    LONG,
    "After how many records a partition is synced to the disk.",
    broker.LOG_FLUSH_INTERVAL_MESSAGES,
)
FLUSH_MS = _topic(
    "flush.ms",
    LONG,
    "After how long records that are not synced yet are synced to the disk, in milliseconds.",
    broker.LOG_FLUSH_INTERVAL_MS,
    broker.LOG_FLUSH_SCHEDULER_INTERVAL_MS,
    valid=at_least(0),
)
MAX_MESSAGE_BYTES = _topic(
    "max.message.bytes",
    INT,
    "The largest record batch, in bytes, compressed if it is.",
    broker.MESSAGE_MAX_BYTES,
)
COMPRESSION_TYPE = _topic(
    "compression.type",
    broker.COMPRESSION_TYPE.type,
    "The codec of stored batches; `producer` keeps what the producer chose.",
    broker.COMPRESSION_TYPE,
)
MESSAGE_TIMESTAMP_TYPE = _topic(
    "message.timestamp.type",
    broker.LOG_MESSAGE_TIMESTAMP_TYPE.type,
    "Whether records keep the producer's timestamp or get the broker's.",
    broker.LOG_MESSAGE_TIMESTAMP_TYPE,
)
MESSAGE_TIMESTAMP_BEFORE_MAX_MS = _topic(
    "message.timestamp.before.max.ms",
    LONG,
    "How far a record's timestamp may lie behind the broker's clock, in milliseconds.",
    broker.LOG_MESSAGE_TIMESTAMP_BEFORE_MAX_MS,
)
MESSAGE_TIMESTAMP_AFTER_MAX_MS = _topic(
    "message.timestamp.after.max.ms",
    LONG,
    "How far a record's timestamp may lie ahead of the broker's clock, in milliseconds.",
    broker.LOG_MESSAGE_TIMESTAMP_AFTER_MAX_MS,
)
MIN_INSYNC_REPLICAS = _topic(
    "min.insync.replicas",
    INT,
    "How many replicas must be in sync for acks=all.",
    broker.MIN_INSYNC_REPLICAS,
)

# ----------------------------------------- what clients may set although nothing here acts on it

DELETE_RETENTION_MS = _topic(
    "delete.retention.ms",
    LONG,
    "How long a compacted partition keeps tombstones, in milliseconds.",
    broker.LOG_CLEANER_DELETE_RETENTION_MS,
)
MIN_COMPACTION_LAG_MS = _topic(
    "min.compaction.lag.ms",
    LONG,
    "How long a record stays as it is in a compacted partition, in milliseconds.",
    broker.LOG_CLEANER_MIN_COMPACTION_LAG_MS,
)
MAX_COMPACTION_LAG_MS = _topic(
    "max.compaction.lag.ms",
    LONG,
    "The age at which a record must be compacted, in milliseconds.",
    broker.LOG_CLEANER_MAX_COMPACTION_LAG_MS,
)
MIN_CLEANABLE_DIRTY_RATIO = _topic(
    "min.cleanable.dirty.ratio",
    broker.LOG_CLEANER_MIN_CLEANABLE_RATIO.type,
    "The share of a partition that must be dirty before it is compacted.",
    broker.LOG_CLEANER_MIN_CLEANABLE_RATIO,
)
UNCLEAN_LEADER_ELECTION_ENABLE = _topic(
    "unclean.leader.election.enable",
    BOOLEAN,
    "Whether a replica that is out of sync may become the leader.",
    broker.UNCLEAN_LEADER_ELECTION_ENABLE,
)
PREALLOCATE = _topic(
    "preallocate",
    BOOLEAN,
    "Whether segment files are given their whole size when they are made.",
    default=False,
    no_effect="files grow as they are written",
)
_CODEC_LEVEL = "every codec compresses at its default level"
COMPRESSION_GZIP_LEVEL = _topic(
    "compression.gzip.level",
    INT,
    "The level of gzip when the broker compresses.",
    default=-1,
    valid=any_valid(equals(-1), between(1, 9)),
    no_effect=_CODEC_LEVEL,
)
COMPRESSION_LZ4_LEVEL = _topic(
    "compression.lz4.level",
    INT,
    "The level of lz4 when the broker compresses.",
    default=9,
    valid=between(1, 17),
    no_effect=_CODEC_LEVEL,
)
COMPRESSION_ZSTD_LEVEL = _topic(
    "compression.zstd.level",
    INT,
    "The level of zstd when the broker compresses.",
    default=3,
    valid=between(-131072, 22),
    no_effect=_CODEC_LEVEL,
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
    """The values in force for one topic: ``config[RETENTION_MS]`` is an int of milliseconds."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: Setting[T]) -> T:
        value: T = self._values[key.name]
        return value


def synonyms_of(topic_setting: Setting[Any]) -> tuple[Synonym, ...]:
    """The broker settings that stand in for a topic's, first one first."""
    return _SYNONYMS[topic_setting.name]


def broker_value(settings: Settings, topic_setting: Setting[T]) -> T:
    """The value that the broker's settings give a topic which says nothing itself."""
    for stand_in, factor in synonyms_of(topic_setting):
        value: Any = settings[stand_in]
        if value is None:
            continue
        if factor != 1:
            # -1 means «for ever» in every unit; anything longer than a long holds means the same.
            value = value * factor if value >= 0 else -1
        found: T = value
        return found
    return topic_setting.default


def parse_topic_value(name: str, text: str | None) -> Any:
    """A topic setting's value; raises `BadValueError` with a whole sentence about what is wrong."""
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
    """One value in force for a topic with these overrides (already checked when stored)."""
    if key.name in overrides:
        return key.parse(overrides[key.name])
    return broker_value(settings, key)


def topic_config(settings: Settings, overrides: Mapping[str, str]) -> TopicConfig:
    """Every value in force for a topic with these overrides (already checked when stored)."""
    return TopicConfig(
        {name: topic_value(settings, overrides, key) for name, key in TOPIC_SETTINGS.items()}
    )
