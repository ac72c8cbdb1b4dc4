from __future__ import annotations

import gc
import sys
import tempfile

import pytest

from minibroker.broker.settings import LISTENERS, NUM_IO_THREADS, ConfigError, Listener
from minibroker.testing.fork_server import (
    LATE,
    LOG_BYTES_MAX,
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
