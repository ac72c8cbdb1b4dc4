"""The choice of the config store, and the error if ZooKeeper is unavailable."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from minibroker.broker.controller.stores import open_store
from minibroker.broker.log.data_directory import SESSION_FILE, STORE_FILE
from minibroker.broker.metadata.store.sqlite import SqliteStore
from minibroker.broker.metadata.store.tree import StoreError
from minibroker.broker.settings import Settings


async def test_embedded_store_is_a_file_in_the_data_directory(tmp_path: Path) -> None:
    store = await open_store(Settings.from_sources(), tmp_path)
    assert isinstance(store, SqliteStore)
    assert (tmp_path / STORE_FILE).exists()
    await store.close()


async def test_zookeeper_that_is_not_there_is_named(tmp_path: Path) -> None:
    pairs = ["zookeeper.connect=127.0.0.1:1/x", "zookeeper.connection.timeout.ms=200"]
    with pytest.raises(StoreError, match=r"no ZooKeeper answered at 127\.0\.0\.1:1 for 200 ms"):
        await open_store(Settings.from_sources(pairs=pairs), tmp_path)
    assert not (tmp_path / SESSION_FILE).exists()
    assert not (tmp_path / STORE_FILE).exists()


def test_controller_import_does_not_load_kazoo() -> None:
    program = "import minibroker.broker.controller, sys; print('kazoo' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


async def test_without_kazoo_its_installation_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [
        name for name in sys.modules if name.startswith("minibroker.broker.metadata.store.zoo")
    ]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("kazoo", "kazoo.client", "kazoo.exceptions"):
        monkeypatch.setitem(sys.modules, name, None)
    settings = Settings.from_sources(pairs=["zookeeper.connect=127.0.0.1:1"])
    with pytest.raises(StoreError, match=r"pip install minibroker\[zookeeper\]"):
        await open_store(settings, tmp_path)
