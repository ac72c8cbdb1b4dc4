"""Settings of Fetch requests.

Owns their declarations; like ``definitions``, it must never read a file or hold a configured value.
The invariant: names and units are Kafka's.  Echoes Kafka's ``ServerConfigs``.
"""

from __future__ import annotations

from minibroker.broker.settings.setting import setting
from minibroker.broker.settings.types import INT, at_least

FETCH_MAX_BYTES = setting(
    "fetch.max.bytes",
    INT,
    default=55 * 1024 * 1024,
    valid=at_least(1024),
    doc="The maximum size of the records in a fetch response, in bytes. If the first batch is "
    "larger, it is returned anyway.",
)

MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS = setting(
    "max.incremental.fetch.session.cache.slots",
    INT,
    default=1000,
    valid=at_least(0),
    doc="The maximum number of incremental fetch sessions. Each network processor has an equal "
    "share of them, and a client uses its session at the processor that created it.",
)
