"""The broker of the system tests, and the requirements of the machine.

Owns the choice (`--broker minibroker`, the default, or `--broker kafka`, which shows that a test is
true of Kafka itself), the shared broker of a run and the rule for missing toolchains: a test that
needs one is skipped with the reason, and fails if CI is set. Invariant: every test gets its own
topics and groups, so that all can share one broker.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from system_tests.harness.brokers import RunningBroker, start_kafka, start_minibroker
from system_tests.harness.jars import ToolchainMissing, kafka_jars
from system_tests.harness.kafka_tools import KafkaTools
from tests.foreground import heed_interrupts

FOLDER = Path(__file__).parent

# Kafka's shipped server.properties does the same: tests need not wait three seconds per group.
KAFKA_TEST_SETTINGS = {"group.initial.rebalance.delay.ms": "100"}

LONGEST = (
    "pipeline/test_ingest_kills.py",
    "pipeline/test_watch_kills.py",
    "suites/test_librdkafka.py",
    "suites/test_kafka_python.py",
    "guides/test_guides.py",
    "exhibits/test_exhibits.py",
    "pipeline/test_silent_brokers.py",
    "pipeline/test_secured.py",
    "pipeline/test_recreated_topic.py",
    "pipeline/test_getting_started.py",
    "transactions/test_transactions.py",
    "transactions/test_streams.py",
    "pipeline/test_replay_accuracy.py",
    "pipeline/test_cluster.py",
    "suites/test_kgo.py",
    "histories/test_workloads.py",
    "laboratory/test_all_clients.py",
    "pipeline/test_watch.py",
    "faults/test_killed_copiers.py",
    "faults/test_killed_transactions.py",
    "histories/test_killed_processes.py",
    "zookeeper/test_brokers.py",
    "peers/test_same_answers.py",
    "peers/test_same_refusals.py",
)
"""Files whose tests take the longest, in this order.

They start first: a worker of pytest-xdist that starts one last would work alone in the end.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--broker",
        choices=["minibroker", "kafka"],
        default=os.environ.get("SYSTEM_TESTS_BROKER", "minibroker"),
        help="what the system tests run against (default: minibroker)",
    )


def pytest_configure() -> None:
    heed_interrupts()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    places = {FOLDER / name: place for place, name in enumerate(LONGEST)}
    if missing := [str(path) for path in places if not path.exists()]:
        raise pytest.UsageError(f"LONGEST has files that do not exist: {', '.join(missing)}")
    items.sort(key=lambda item: places.get(item.path, len(places)))
    if config.getoption("--broker") == "minibroker":
        return
    skip = pytest.mark.skip(reason="tests minibroker only; --broker is kafka")
    for item in items:
        if item.get_closest_marker("minibroker"):
            item.add_marker(skip)


def without_toolchain(missing: ToolchainMissing) -> None:
    """Skip the test, or fail it in CI, where nothing may be left out."""
    if os.environ.get("CI", "").lower() in {"1", "true"}:
        pytest.fail(f"left out in CI: {missing}", pytrace=False)
    pytest.skip(str(missing))


@pytest.fixture(scope="session")
def kafka_libs() -> Path:
    """The folder of Apache Kafka's jars."""
    try:
        return kafka_jars()
    except ToolchainMissing as missing:
        without_toolchain(missing)
        raise


@pytest.fixture(scope="session")
def kafka_tools() -> Iterator[KafkaTools]:
    """Apache Kafka's command-line programs."""
    try:
        tools = KafkaTools()
    except ToolchainMissing as missing:
        without_toolchain(missing)
        raise
    yield tools
    tools.close()


@pytest.fixture(scope="session")
def memory_folder() -> Iterator[Path]:
    """A folder in memory-backed storage where there is one; removed at the end."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="system-tests-", dir=parent))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> Iterator[RunningBroker]:
    """The broker that the tests of this run share."""
    if request.config.getoption("--broker") == "kafka":
        request.getfixturevalue("kafka_libs")
        folder = request.getfixturevalue("memory_folder")
        running = start_kafka(folder / "kafka", settings=KAFKA_TEST_SETTINGS)
    else:
        running = start_minibroker()
    with running:
        yield running


@pytest.fixture(autouse=True)
def _check_brokers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test during which a process of a shared broker ended by itself."""
    yield
    for value in request.node.funcargs.values():
        if isinstance(value, RunningBroker):
            value.check()


@pytest.fixture
def fresh() -> Callable[[str], str]:
    """Make names that nothing else uses: `fresh("orders")`."""

    def name(stem: str) -> str:
        return f"{stem}-{uuid.uuid4().hex[:10]}"

    return name
