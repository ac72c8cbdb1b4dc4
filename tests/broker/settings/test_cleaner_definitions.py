from __future__ import annotations

import pytest

from minibroker.broker.settings import BROKER_SETTINGS, Settings
from minibroker.broker.settings.cleaner_definitions import (
    LOG_CLEANER_BACKOFF_MS,
    LOG_CLEANER_THREADS,
)
from minibroker.broker.settings.types import BadValueError

DEFAULTS = {
    "log.cleaner.enable": "true",
    "log.cleaner.threads": "1",
    "log.cleaner.dedupe.buffer.size": "134217728",
    "log.cleaner.io.buffer.size": "524288",
    "log.cleaner.io.buffer.load.factor": "0.9",
    "log.cleaner.backoff.ms": "15000",
    "log.cleaner.min.cleanable.ratio": "0.5",
    "log.cleaner.delete.retention.ms": "86400000",
    "log.cleaner.min.compaction.lag.ms": "0",
    "log.cleaner.max.compaction.lag.ms": "9223372036854775807",
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_default_is_that_of_kafka(name: str) -> None:
    setting = BROKER_SETTINGS[name]
    assert setting.render(setting.default) == DEFAULTS[name]


def test_values_are_checked() -> None:
    assert Settings.from_sources()[LOG_CLEANER_BACKOFF_MS] == 15_000
    with pytest.raises(BadValueError):
        LOG_CLEANER_THREADS.parse("-1")
