"""Settings that Kafka can change while it runs and that have nothing to act on here.

Owns their declarations; like ``definitions``, it must never read a file or hold a configured value.
Invariant: tools that set them get Kafka's answer, for valid and invalid values, and every setting
says why it has no effect. Echoes the dynamic part of ``KafkaConfig``, ``QuotaConfig`` and
``RemoteLogManagerConfig``.
"""

from __future__ import annotations

from typing import Any

from minibroker.broker.settings.setting import Setting, setting
from minibroker.broker.settings.types import (
    BOOLEAN,
    INT,
    LONG,
    LONG_MAX,
    SettingType,
    Valid,
    any_valid,
    at_least,
    between,
    equals,
)

_ONE_REPLICA = "there is no other replica"
_CODEC_LEVEL = "every codec compresses at its default level"
_NOT_TIERED = "there is no tiered storage"


def _ineffective(  # noqa: PLR0917
    name: str,
    type: SettingType[Any],  # noqa: A002 - as in `setting`
    default: Any,
    doc: str,
    reason: str,
    valid: Valid[Any] | None = None,
) -> Setting[Any]:
    return setting(
        name, type, default=default, doc=doc, no_effect=reason, valid=valid, dynamic=True
    )


COMPRESSION_GZIP_LEVEL = _ineffective(
    "compression.gzip.level",
    INT,
    -1,
    "The gzip level for recompression by the broker.",
    _CODEC_LEVEL,
    any_valid(equals(-1), between(1, 9)),
)
COMPRESSION_LZ4_LEVEL = _ineffective(
    "compression.lz4.level",
    INT,
    9,
    "The lz4 level for recompression by the broker.",
    _CODEC_LEVEL,
    between(1, 17),
)
COMPRESSION_ZSTD_LEVEL = _ineffective(
    "compression.zstd.level",
    INT,
    3,
    "The zstd level for recompression by the broker.",
    _CODEC_LEVEL,
    between(-131072, 22),
)
LOG_PREALLOCATE = _ineffective(
    "log.preallocate",
    BOOLEAN,
    False,
    "Whether segment files are allocated at full size when they are created.",
    "files grow as they are written",
)
LOG_ROLL_JITTER_MS = _ineffective(
    "log.roll.jitter.ms",
    LONG,
    0,
    "The maximum random jitter subtracted from `log.roll.ms`, in milliseconds.",
    "segments are rolled without jitter",
    at_least(0),
)

BACKGROUND_THREADS = _ineffective(
    "background.threads",
    INT,
    10,
    "The number of threads for background work.",
    "the roles do it in processes of their own",
    at_least(1),
)
NUM_RECOVERY_THREADS_PER_DATA_DIR = _ineffective(
    "num.recovery.threads.per.data.dir",
    INT,
    2,
    "The number of threads that recover logs.",
    "each I/O worker recovers its own logs",
    at_least(1),
)
NUM_REPLICA_FETCHERS = _ineffective(
    "num.replica.fetchers",
    INT,
    1,
    "The number of threads that fetch from leaders.",
    _ONE_REPLICA,
    at_least(1),
)
LEADER_REPLICATION_THROTTLED_RATE = _ineffective(
    "leader.replication.throttled.rate",
    LONG,
    LONG_MAX,
    "The bytes per second that throttled leaders send to replicas.",
    _ONE_REPLICA,
    at_least(0),
)
FOLLOWER_REPLICATION_THROTTLED_RATE = _ineffective(
    "follower.replication.throttled.rate",
    LONG,
    LONG_MAX,
    "The bytes per second that throttled replicas fetch.",
    _ONE_REPLICA,
    at_least(0),
)
REPLICA_ALTER_LOG_DIRS_IO_MAX_BYTES_PER_SECOND = _ineffective(
    "replica.alter.log.dirs.io.max.bytes.per.second",
    LONG,
    LONG_MAX,
    "The bytes per second at which logs are moved between directories.",
    "there is one data directory",
    at_least(0),
)
LOG_LOCAL_RETENTION_BYTES = _ineffective(
    "log.local.retention.bytes",
    LONG,
    -2,
    "How many bytes of a log with remote copies are kept; -2 means `log.retention.bytes`.",
    _NOT_TIERED,
    at_least(-2),
)
LOG_LOCAL_RETENTION_MS = _ineffective(
    "log.local.retention.ms",
    LONG,
    -2,
    "How long a log with remote copies is kept, in milliseconds; -2 means `log.retention.ms`.",
    _NOT_TIERED,
    at_least(-2),
)
LOG_REMOTE_COPY_LAG_BYTES = _ineffective(
    "log.remote.copy.lag.bytes",
    LONG,
    -1,
    "By how many bytes remote copies may be behind.",
    _NOT_TIERED,
    at_least(-1),
)
LOG_REMOTE_COPY_LAG_MS = _ineffective(
    "log.remote.copy.lag.ms",
    LONG,
    0,
    "By how many milliseconds remote copies may be behind.",
    _NOT_TIERED,
    at_least(-1),
)
REMOTE_FETCH_MAX_WAIT_MS = _ineffective(
    "remote.fetch.max.wait.ms",
    INT,
    500,
    "How long a fetch waits for remote copies, in milliseconds.",
    _NOT_TIERED,
    at_least(1),
)
REMOTE_LIST_OFFSETS_REQUEST_TIMEOUT_MS = _ineffective(
    "remote.list.offsets.request.timeout.ms",
    LONG,
    30_000,
    "How long ListOffsets waits for remote copies, in milliseconds.",
    _NOT_TIERED,
    at_least(1),
)
REMOTE_LOG_INDEX_FILE_CACHE_TOTAL_SIZE_BYTES = _ineffective(
    "remote.log.index.file.cache.total.size.bytes",
    LONG,
    1024 * 1024 * 1024,
    "The size of the cache of remote indexes, in bytes.",
    _NOT_TIERED,
    at_least(1),
)
REMOTE_LOG_MANAGER_COPIER_THREAD_POOL_SIZE = _ineffective(
    "remote.log.manager.copier.thread.pool.size",
    INT,
    10,
    "The number of threads that make remote copies.",
    _NOT_TIERED,
    at_least(1),
)
REMOTE_LOG_MANAGER_EXPIRATION_THREAD_POOL_SIZE = _ineffective(
    "remote.log.manager.expiration.thread.pool.size",
    INT,
    10,
    "The number of threads that delete remote copies.",
    _NOT_TIERED,
    at_least(1),
)
REMOTE_LOG_MANAGER_FOLLOWER_THREAD_POOL_SIZE = _ineffective(
    "remote.log.manager.follower.thread.pool.size",
    INT,
    2,
    "The number of threads that follow remote copies.",
    _NOT_TIERED,
    at_least(1),
)
REMOTE_LOG_READER_THREADS = _ineffective(
    "remote.log.reader.threads",
    INT,
    10,
    "The number of threads that read remote copies.",
    _NOT_TIERED,
    at_least(1),
)
REMOTE_LOG_MANAGER_COPY_MAX_BYTES_PER_SECOND = _ineffective(
    "remote.log.manager.copy.max.bytes.per.second",
    LONG,
    LONG_MAX,
    "The bytes per second that are copied.",
    _NOT_TIERED,
    at_least(1),
)
REMOTE_LOG_MANAGER_FETCH_MAX_BYTES_PER_SECOND = _ineffective(
    "remote.log.manager.fetch.max.bytes.per.second",
    LONG,
    LONG_MAX,
    "The bytes per second that are read from remote copies.",
    _NOT_TIERED,
    at_least(1),
)
FOLLOWER_FETCH_LAST_TIERED_OFFSET_ENABLE = _ineffective(
    "follower.fetch.last.tiered.offset.enable",
    BOOLEAN,
    False,
    "Whether new replicas start after the segments that have remote copies.",
    _NOT_TIERED,
)

THREAD_COUNTS = frozenset(
    {
        BACKGROUND_THREADS.name,
        "log.cleaner.threads",
        NUM_RECOVERY_THREADS_PER_DATA_DIR.name,
        NUM_REPLICA_FETCHERS.name,
        REMOTE_LOG_MANAGER_COPIER_THREAD_POOL_SIZE.name,
        REMOTE_LOG_MANAGER_EXPIRATION_THREAD_POOL_SIZE.name,
        REMOTE_LOG_MANAGER_FOLLOWER_THREAD_POOL_SIZE.name,
        REMOTE_LOG_READER_THREADS.name,
    }
)
"""Numbers of threads, which one change may at most double and at least halve."""
