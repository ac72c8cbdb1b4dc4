"""Settings of quotas: how rates are measured and how clients are throttled.

Owns their declarations; like ``definitions``, it must never read a file or hold a configured value.
The invariant: quotas themselves are not settings but configs of users and clients in the config
store, except for two deprecated defaults.  Echoes Kafka's ``QuotaConfig``.
"""

from __future__ import annotations

from minibroker.broker.settings.setting import setting
from minibroker.broker.settings.types import INT, LONG, LONG_MAX, STRING, at_least, one_of

MUTE, DELAY = "mute", "delay"

QUOTA_WINDOW_NUM = setting(
    "quota.window.num",
    INT,
    default=11,
    valid=at_least(1),
    doc="The number of samples for rates of connections, bytes and request time.",
)
QUOTA_WINDOW_SIZE_SECONDS = setting(
    "quota.window.size.seconds",
    INT,
    default=1,
    valid=at_least(1),
    doc="The length of each sample, in seconds; also the longest throttle for connection rates and "
    "request time.",
)
CONTROLLER_QUOTA_WINDOW_NUM = setting(
    "controller.quota.window.num",
    INT,
    default=11,
    valid=at_least(1),
    doc="How many windows of unused `controller_mutation_rate` a client can accumulate and use at "
    "once.",
)
CONTROLLER_QUOTA_WINDOW_SIZE_SECONDS = setting(
    "controller.quota.window.size.seconds",
    INT,
    default=1,
    valid=at_least(1),
    doc="The length of each window of `controller_mutation_rate`, in seconds.",
)
QUOTA_THROTTLE_MODE = setting(
    "quota.throttle.mode",
    STRING,
    default=MUTE,
    valid=one_of(MUTE, DELAY),
    doc="How a client that exceeds a quota is throttled. `mute`: the broker responds at once with "
    "the throttle time, and mutes the connection for that time (KIP-219). `delay`: the broker "
    "delays the response, first for the byte rate, then for the request time (KIP-55, KIP-124). "
    "Not a Kafka setting.",
)
QUOTA_PRODUCER_DEFAULT = setting(
    "quota.producer.default",
    LONG,
    default=LONG_MAX,
    valid=at_least(1),
    doc="Deprecated: the bytes per second that a client-id may produce if no quota applies to it. "
    "Set the quota `producer_byte_rate` of the default client instead.",
)
QUOTA_CONSUMER_DEFAULT = setting(
    "quota.consumer.default",
    LONG,
    default=LONG_MAX,
    valid=at_least(1),
    doc="Deprecated: the bytes per second that a client-id may fetch if no quota applies to it. "
    "Set the quota `consumer_byte_rate` of the default client instead.",
)
