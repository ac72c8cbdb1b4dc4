"""Settings of the journal.

Owns their declarations; like ``definitions``, it must never read a file or hold a configured value.
The invariant: with the defaults nothing is recorded until the control API asks for it. Kafka has no
counterpart.
"""

from __future__ import annotations

from minibroker.broker.settings.setting import setting
from minibroker.broker.settings.types import BOOLEAN, LONG, at_least

JOURNAL_BYTES_MIN = 1024 * 1024

JOURNAL_ENABLE = setting(
    "journal.enable",
    BOOLEAN,
    default=False,
    doc="Whether the broker records every request and response, connection, fault, change of the "
    "clock and changed state from its start on. The control API can switch it on later. Not a "
    "Kafka setting.",
)
JOURNAL_MAX_BYTES = setting(
    "journal.max.bytes",
    LONG,
    default=64 * 1024 * 1024,
    valid=at_least(JOURNAL_BYTES_MIN),
    doc="The memory of the journal in bytes, above which the oldest entries are dropped. Not a "
    "Kafka setting.",
)
