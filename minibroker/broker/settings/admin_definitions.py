"""Settings of APIs that describe or operate the cluster.

Owns their declarations; like ``definitions``, it must never read a file or hold a configured value.
In Kafka they are part of ``ServerConfigs``.
"""

from __future__ import annotations

from minibroker.broker.settings.setting import setting
from minibroker.broker.settings.types import BOOLEAN, INT, LONG, PASSWORD, at_least, optional

ADVERTISE_CONTROLLER_REQUESTS = setting(
    "advertise.controller.requests",
    BOOLEAN,
    default=False,
    doc="Whether ApiVersions lists LeaderAndIsr, StopReplica, UpdateMetadata and "
    "ControlledShutdown, which controllers sent to brokers before Kafka 4. With "
    "`zookeeper.connect` they are always listed. Clients that guess the version of a broker take "
    "one that lists them for an old one. Not a Kafka setting.",
)
MAX_REQUEST_PARTITION_SIZE_LIMIT = setting(
    "max.request.partition.size.limit",
    INT,
    default=2000,
    valid=at_least(1),
    doc="The most partitions in one response to DescribeTopicPartitions. The client requests the "
    "rest with the cursor of the response.",
)

DELEGATION_TOKEN_SECRET_KEY = setting(
    "delegation.token.secret.key",
    optional(PASSWORD),
    default=None,
    default_text="no delegation tokens",
    doc="The key that the secrets of delegation tokens are made with. Without it, or if it is "
    "empty, the broker has no delegation tokens. Tokens of another key are invalid.",
)
DELEGATION_TOKEN_MAX_LIFETIME_MS = setting(
    "delegation.token.max.lifetime.ms",
    LONG,
    default=7 * 24 * 3_600_000,
    valid=at_least(1),
    doc="The time after which a delegation token cannot be renewed any more.",
)
DELEGATION_TOKEN_EXPIRY_TIME_MS = setting(
    "delegation.token.expiry.time.ms",
    LONG,
    default=24 * 3_600_000,
    valid=at_least(1),
    doc="The time after which a delegation token expires unless it is renewed.",
)
DELEGATION_TOKEN_EXPIRY_CHECK_INTERVAL_MS = setting(
    "delegation.token.expiry.check.interval.ms",
    LONG,
    default=3_600_000,
    valid=at_least(1),
    doc="The interval at which expired delegation tokens are removed.",
)

TELEMETRY_MAX_BYTES = setting(
    "telemetry.max.bytes",
    INT,
    default=1_048_576,
    valid=at_least(1),
    doc="The largest push of metrics of a client, compressed, in bytes (KIP-714).",
)
