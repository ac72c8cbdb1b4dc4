"""The contract of config stores, tested with ZooKeeper; the suite is in ``tests/contracts``."""

from __future__ import annotations

import pytest

from system_tests.harness.zookeeper import ZooKeeper
from system_tests.zookeeper.conftest import Maker, maker_at
from tests.contracts.test_store import *  # noqa: F403 - the tests, and the fixture `store`

pytestmark = pytest.mark.minibroker


@pytest.fixture  # type: ignore[no-redef] # in place of the suite's own
def maker(zookeeper_server: ZooKeeper) -> Maker:
    return maker_at(zookeeper_server.address)


@pytest.fixture  # type: ignore[no-redef] # likewise
def lasting_maker(maker: Maker) -> Maker:
    return maker
