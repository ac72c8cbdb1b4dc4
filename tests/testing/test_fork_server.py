from __future__ import annotations

import gc
import sys
import tempfile

import pytest

from minibroker.broker.settings import LISTENERS, NUM_IO_THREADS, ConfigError, Listener
from minibroker.testing.fork_server import (
    LATE,
    LOG_BYTES_MAX,
    SpareRule,
    are_repeatable,
    import_late_modules,
    importing,
    read_settings,
    tail,
)


def test_imported_modules_are_excluded_from_garbage_collection() -> None:
    frozen = gc.get_freeze_count()
    try:
        with importing():
            assert not gc.isenabled()
            kept: list[list[int]] = [[]]
        assert gc.isenabled()
        assert gc.get_freeze_count() > frozen
        assert not any(kept is one for one in gc.get_objects())
        import_late_modules()
        assert set(LATE) <= set(sys.modules)
    finally:
        gc.unfreeze()


def test_test_broker_uses_free_ports_by_default() -> None:
    settings = read_settings({"num.io.threads": "1"})
    assert settings[LISTENERS] == (Listener("PLAINTEXT", "127.0.0.1", 0),)
    assert settings[NUM_IO_THREADS] == 1
    result = read_settings({"listeners": "PLAINTEXT://127.0.0.1:9999"})
    assert result[LISTENERS] == (Listener("PLAINTEXT", "127.0.0.1", 9999),)


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="there is no such setting"):
        read_settings({"zzz": "1"})


def test_tail_of_long_log_is_its_end() -> None:
    with tempfile.TemporaryFile() as log:
        log.write(b"x" * LOG_BYTES_MAX + b"the end")
        log.flush()
        text = tail(log)
    assert len(text) == LOG_BYTES_MAX
    assert text.endswith("the end")


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
