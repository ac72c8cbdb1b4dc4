"""Settings without effect: tools that set them get Kafka's answer."""

from __future__ import annotations

import pytest

from minibroker.broker.settings import BROKER_SETTINGS, ineffective_definitions
from minibroker.broker.settings.ineffective_definitions import THREAD_COUNTS
from minibroker.broker.settings.setting import Setting
from minibroker.broker.settings.types import BadValueError

DECLARED = [each for each in vars(ineffective_definitions).values() if isinstance(each, Setting)]


@pytest.mark.parametrize("setting", DECLARED, ids=repr)
def test_setting_can_be_changed_and_says_why_it_has_no_effect(setting: Setting[object]) -> None:
    assert setting.dynamic
    assert setting.no_effect
    assert BROKER_SETTINGS[setting.name] is setting


@pytest.mark.parametrize(
    ("name", "invalid"),
    [
        ("num.replica.fetchers", "0"),
        ("compression.gzip.level", "0"),
        ("compression.zstd.level", "23"),
        ("log.local.retention.ms", "-3"),
        ("leader.replication.throttled.rate", "-1"),
        ("log.preallocate", "yes"),
    ],
)
def test_invalid_value_is_rejected_as_by_kafka(name: str, invalid: str) -> None:
    with pytest.raises(BadValueError):
        BROKER_SETTINGS[name].parse(invalid)


def test_numbers_of_threads_are_settings() -> None:
    assert BROKER_SETTINGS.keys() >= THREAD_COUNTS
