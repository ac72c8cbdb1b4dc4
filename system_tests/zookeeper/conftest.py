"""ZooKeeper servers for the tests of this folder: one that all share, and others to be killed."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from minibroker.broker.metadata.store.zookeeper import ZooKeeperAccess, ZooKeeperStore
from minibroker.broker.settings.setting import parse_connect_string
from system_tests.conftest import without_toolchain
from system_tests.harness.jars import ToolchainMissing, zookeeper_jars
from system_tests.harness.zookeeper import ZooKeeper, start_zookeeper

pytest.register_assert_rewrite("tests.contracts.test_store")


def access(connect: str, *, session_s: float = 10.0, patience_s: float = 10.0) -> ZooKeeperAccess:
    return ZooKeeperAccess(parse_connect_string(connect), session_s, patience_s)


def chroot_of(directory: Path) -> str:
    return f"/contract/{hashlib.sha256(str(directory).encode()).hexdigest()[:16]}"


Maker = Callable[[Path], Awaitable[ZooKeeperStore]]


def maker_at(connect: str) -> Maker:
    """Return a maker of separate stores, one per directory, as the contract suite needs them."""

    async def make(directory: Path) -> ZooKeeperStore:
        return await ZooKeeperStore.open(access(connect + chroot_of(directory)))

    return make


@pytest.fixture(scope="session")
def zookeeper_libs() -> Path:
    """The folder of ZooKeeper's jars."""
    try:
        return zookeeper_jars()
    except ToolchainMissing as missing:
        without_toolchain(missing)
        raise


@pytest.fixture(scope="session")
def zookeeper_server(zookeeper_libs: Path, memory_folder: Path) -> Iterator[ZooKeeper]:
    """A server that all tests share, each below a chroot of its own."""
    server = start_zookeeper(memory_folder / "zookeeper")
    yield server
    server.kill()


@pytest.fixture
def own_server(zookeeper_libs: Path, tmp_path: Path) -> Iterator[ZooKeeper]:
    """A server that the test may kill."""
    server = start_zookeeper(tmp_path / "zookeeper")
    yield server
    server.kill()
