"""Settings of admin APIs: defaults are Kafka's."""

from __future__ import annotations

import pytest

from minibroker.broker.settings import (
    ADVERTISE_CONTROLLER_REQUESTS,
    MAX_REQUEST_PARTITION_SIZE_LIMIT,
    ConfigError,
    Settings,
)


def test_page_of_partitions_has_kafkas_default_limit() -> None:
    assert Settings.from_sources()[MAX_REQUEST_PARTITION_SIZE_LIMIT] == 2000


def test_controller_requests_are_not_advertised_by_default() -> None:
    assert not Settings.from_sources()[ADVERTISE_CONTROLLER_REQUESTS]


def test_page_without_partitions_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"max\.request\.partition\.size\.limit"):
        Settings.from_sources(pairs=["max.request.partition.size.limit=0"])
