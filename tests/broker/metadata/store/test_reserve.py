"""Space that is kept for deletions."""

from __future__ import annotations

from pathlib import Path

import pytest

from minibroker.broker.metadata.store import reserve
from minibroker.broker.metadata.store.reserve import RESERVE_BYTES, SUFFIX, Reserve


def test_reserve_takes_space_gives_it_back_once_and_takes_it_again(tmp_path: Path) -> None:
    path = tmp_path / f"store{SUFFIX}"
    held = Reserve(str(tmp_path / "store"))
    held.restore()
    assert path.stat().st_blocks * 512 >= RESERVE_BYTES
    assert held.release()
    assert path.stat().st_size == 0
    assert not held.release()
    held.restore()
    assert path.stat().st_size == RESERVE_BYTES


def test_reserve_is_not_taken_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reserve, "free_bytes", lambda _: 2 * RESERVE_BYTES - 1)
    held = Reserve(str(tmp_path / "store"))
    held.restore()
    assert list(tmp_path.iterdir()) == []
    assert not held.release()


def test_reserve_of_an_earlier_run_can_be_released(tmp_path: Path) -> None:
    Reserve(str(tmp_path / "store")).restore()
    assert Reserve(str(tmp_path / "store")).release()


def test_store_in_memory_has_no_reserve() -> None:
    assert not Reserve(None).release()
