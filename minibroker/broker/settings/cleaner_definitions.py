"""Settings of the log cleaner.

Owns their declarations; like ``definitions``, it must never read a file or hold a configured value.
Echoes ``CleanerConfig``.
"""

from __future__ import annotations

import sys

from minibroker.broker.settings.setting import setting
from minibroker.broker.settings.types import BOOLEAN, DOUBLE, INT, LONG, LONG_MAX, at_least, between

LOG_CLEANER_ENABLE = setting(
    "log.cleaner.enable",
    BOOLEAN,
    default=True,
    doc="Whether logs with `cleanup.policy=compact` are compacted. A request to compact a topic "
    "works nevertheless.",
)
LOG_CLEANER_THREADS = setting(
    "log.cleaner.threads",
    INT,
    default=1,
    valid=at_least(0),
    dynamic=True,
    doc="The number of threads that compact logs.",
    no_effect="each I/O worker compacts its logs in one process of its own",
)
LOG_CLEANER_DEDUPE_BUFFER_SIZE = setting(
    "log.cleaner.dedupe.buffer.size",
    LONG,
    default=128 * 1024 * 1024,
    dynamic=True,
    doc="Memory for the keys of the logs that are compacted, of all I/O workers together, in "
    "bytes. A key takes 256 bytes. A log with more keys is compacted in several passes.",
)
LOG_CLEANER_IO_BUFFER_LOAD_FACTOR = setting(
    "log.cleaner.io.buffer.load.factor",
    DOUBLE,
    default=0.9,
    dynamic=True,
    doc="Share of `log.cleaner.dedupe.buffer.size` that is used.",
)
LOG_CLEANER_IO_BUFFER_SIZE = setting(
    "log.cleaner.io.buffer.size",
    INT,
    default=512 * 1024,
    valid=at_least(0),
    dynamic=True,
    doc="Memory for buffers to read and write logs that are compacted, of all I/O workers "
    "together, in bytes.",
)
LOG_CLEANER_IO_MAX_BYTES_PER_SECOND = setting(
    "log.cleaner.io.max.bytes.per.second",
    DOUBLE,
    default=sys.float_info.max,
    dynamic=True,
    doc="How many bytes are read and written at most to compact logs, by all I/O workers together.",
)
LOG_CLEANER_BACKOFF_MS = setting(
    "log.cleaner.backoff.ms",
    LONG,
    default=15_000,
    valid=at_least(0),
    dynamic=True,
    doc="The pause before logs are checked again if there was nothing to compact, in milliseconds.",
)
LOG_CLEANER_DELETE_RETENTION_MS = setting(
    "log.cleaner.delete.retention.ms",
    LONG,
    default=24 * 60 * 60 * 1000,
    valid=at_least(0),
    dynamic=True,
    doc="How long a compacted log keeps tombstones, in milliseconds.",
)
LOG_CLEANER_MIN_COMPACTION_LAG_MS = setting(
    "log.cleaner.min.compaction.lag.ms",
    LONG,
    default=0,
    valid=at_least(0),
    dynamic=True,
    doc="How long a record stays uncompacted at least in a compacted log, in milliseconds.",
)
LOG_CLEANER_MAX_COMPACTION_LAG_MS = setting(
    "log.cleaner.max.compaction.lag.ms",
    LONG,
    default=LONG_MAX,
    valid=at_least(1),
    dynamic=True,
    doc="The age at which a record becomes eligible for compaction at the latest, in milliseconds.",
)
LOG_CLEANER_MIN_CLEANABLE_RATIO = setting(
    "log.cleaner.min.cleanable.ratio",
    DOUBLE,
    default=0.5,
    valid=between(0, 1),
    dynamic=True,
    doc="The ratio of dirty log to total log at which a log is compacted.",
)
