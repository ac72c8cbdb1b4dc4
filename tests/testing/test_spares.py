from __future__ import annotations

from minibroker.testing.spares import SpareRule, are_repeatable


def test_second_request_in_a_row_with_the_same_settings_asks_for_a_spare() -> None:
    rule = SpareRule()
    rule.requested({"num.partitions": "3"})
    assert rule.settings is None
    rule.requested({"num.partitions": "3"})
    assert rule.settings == {"num.partitions": "3"}


def test_spare_is_kept_until_other_settings_are_requested_twice_in_a_row() -> None:
    rule = SpareRule()
    for settings in ({}, {}, {"num.partitions": "3"}, {}, {"num.partitions": "3"}):
        rule.requested(settings)
    assert rule.settings == {}
    rule.requested({"num.partitions": "3"})
    assert rule.settings == {"num.partitions": "3"}


def test_no_spare_follows_one_that_ended_until_the_next_two_requests() -> None:
    rule = SpareRule()
    rule.requested({})
    rule.requested({})
    rule.failed()
    assert rule.settings is None
    rule.requested({})
    assert rule.settings is None
    rule.requested({})
    assert rule.settings == {}


def test_settings_that_name_files_or_addresses_are_not_repeatable() -> None:
    assert are_repeatable({})
    assert are_repeatable({"num.partitions": "3", "auto.create.topics.enable": "false"})
    assert are_repeatable({"persona": "kafka-2.8"})
    for name in (
        "listeners",
        "log.dirs",
        "control.listener",
        "zookeeper.connect",
        "ssl.keystore.location",
        "listener.name.ssl.ssl.keystore.location",
        "unknown",
    ):
        assert not are_repeatable({"num.partitions": "3", name: "x"}), name
    rule = SpareRule()
    rule.requested({"log.dirs": "/data"})
    rule.requested({"log.dirs": "/data"})
    assert rule.settings is None
