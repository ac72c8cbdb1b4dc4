"""The settings of quotas: how rates of requests and bytes are measured, and how clients are held.

Owns their declarations; like ``definitions``, of which it is a part, it must never read a file or
hold a value in force.  The invariant: the bounds themselves are no settings, but for two that
Kafka has given up; they are quotas of users and clients, kept with the cluster.  Echoes Kafka's
``QuotaConfig``.
"""

from __future__ import annotations

from minibroker.config.setting import setting
from minibroker.config.types import INT, LONG, LONG_MAX, STRING, at_least, one_of

MUTE, DELAY = "mute", "delay"

QUOTA_WINDOW_NUM = setting(
    "quota.window.num",
    INT,
    default=11,
    valid=at_least(1),
    doc="How many samples a rate is measured over: of connections, bytes and request time.",
)
QUOTA_WINDOW_SIZE_SECONDS = setting(
    "quota.window.size.seconds",
    INT,
    default=1,
    valid=at_least(1),
    doc="How long each sample is; also the longest delay of a connection or by request time.",
)
CONTROLLER_QUOTA_WINDOW_NUM = setting(
    "controller.quota.window.num",
    INT,
    default=11,
    valid=at_least(1),
    doc="How many windows' worth of `controller_mutation_rate` may be used at once.",
)
CONTROLLER_QUOTA_WINDOW_SIZE_SECONDS = setting(
    "controller.quota.window.size.seconds",
    INT,
    default=1,
    valid=at_least(1),
    doc="How long each of these windows is.",
)
QUOTA_THROTTLE_MODE = setting(
    "quota.throttle.mode",
    STRING,
    default=MUTE,
    valid=one_of(MUTE, DELAY),
    doc="How a client that exceeds a quota is held: `mute` answers at once, with the throttle "
    "time, and reads no more from the connection until it has passed (KIP-219); `delay` keeps the "
    "answer back, first for the byte rate, then for the request time, as KIP-55 and KIP-124 "
    "describe it. Not a Kafka setting.",
)
QUOTA_PRODUCER_DEFAULT = setting(
    "quota.producer.default",
    LONG,
    default=LONG_MAX,
    valid=at_least(1),
    doc="Deprecated: the bytes a second that a client-id may send if no quota is set for it, for "
    "its user, or as a default. Set the quota `producer_byte_rate` of the default client instead.",
)
QUOTA_CONSUMER_DEFAULT = setting(
    "quota.consumer.default",
    LONG,
    default=LONG_MAX,
    valid=at_least(1),
    doc="Deprecated: the same for bytes fetched. Set the quota `consumer_byte_rate` of the default "
    "client instead.",
)
