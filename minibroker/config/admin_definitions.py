"""Settings of APIs that describe or operate the cluster.

Owns their declarations; like ``definitions``, it must never read a file or hold a configured value.
In Kafka they are part of ``ServerConfigs``.
"""

from __future__ import annotations

from minibroker.config.setting import setting
from minibroker.config.types import BOOLEAN, INT, at_least

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
