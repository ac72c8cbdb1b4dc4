"""One Spark session for all tests of a process, because a JVM takes seconds to start.

A test that asks for ``spark`` is marked ``java``, and skipped without a JVM, except in CI.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from minibroker.pipeline.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.java)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two cores, shared: leave no settings, views or queries behind."""
    if shutil.which("java") is None and not os.environ.get("CI"):
        pytest.skip("Spark needs a JVM, and there is no java on the path")
    conf = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    with session("tests", master="local[2]", conf=conf) as made:
        yield made


@pytest.fixture(scope="session")
def compiled_replay() -> None:
    """Compile what a replay calls, once: Spark's workers would do it all at the same time."""
    from minibroker.pipeline.whatif.proposal import Counting
    from minibroker.pipeline.whatif.replay import Replay
    from tests.pipeline.whatif import random_workload
    from tests.pipeline.whatif.activity import request_row, table

    chance = random.Random(11)
    proposals = [random_workload.proposal(chance, name) for name in "ab"]
    rows = table([*map(request_row, random_workload.events(chance, 100))])
    for closed in (False, True):
        replay = Replay(proposals, Counting(), closed=closed)
        replay.feed(rows)
        assert list(replay.end())
