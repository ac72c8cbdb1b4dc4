"""The file that keeps a session: its owner's alone, and no harm when it is damaged."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from minibroker.broker.metadata.store.zookeeper_client import ZooKeeperAccess
from minibroker.broker.metadata.store.zookeeper_session import (
    close_previous_session,
    load_session,
    save_session,
)
from minibroker.broker.settings.types import parse_connect_string


def test_session_file_round_trip_is_private(tmp_path: Path) -> None:
    file = tmp_path / "session"
    assert load_session(file) is None
    for number in (-5, 7):
        save_session(file, (number, b"p" * 16))
        assert load_session(file) == (number, b"p" * 16)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("text", ["", "7", "{}", '{"session": "x", "password": ""}', "\0"])
def test_damaged_file_is_treated_as_missing(tmp_path: Path, text: str) -> None:
    file = tmp_path / "session"
    file.write_text(text)
    assert load_session(file) is None


def test_unreachable_server_is_retried(tmp_path: Path) -> None:
    file = tmp_path / "session"
    save_session(file, (7, b"p" * 16))
    close_previous_session(ZooKeeperAccess(parse_connect_string("127.0.0.1:1"), 5.0, 0.2), file)
