"""The pytest plugin: a broker for the test run, unique topics and unique groups.

Owns six fixtures and when the broker starts. It must never import more than itself in a run that
uses none of them. Invariant: under pytest-xdist all workers of a run share one broker, and no two
tests of any run get the same topic or group; a broker that dies fails one test and is replaced. The
broker starts when the first test that uses it is collected, and is imported at once if the last run
used it, so that it is ready in time.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import pytest

if TYPE_CHECKING:
    from minibroker.testing.broker import BrokerNamespace, MiniBroker
    from minibroker.testing.faults import Faults
    from minibroker.testing.journal import RecordedJournal

FIXTURES: Final = frozenset(
    {
        "minibroker",
        "minibroker_topic",
        "minibroker_group",
        "minibroker_faults",
        "minibroker_restored",
        "minibroker_namespace",
    }
)
NAME_MAX: Final = 60
"""Characters of a test's name in the name of its topic."""
USED: Final = "minibroker/used"
"""Key of pytest's cache: whether the last run used a broker."""
WORKER: Final = "PYTEST_XDIST_WORKER"
"""Set in the environment of a worker of pytest-xdist."""
LOG_LINES_MAX: Final = 50


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the setting of the plugin."""
    parser.addini(
        "minibroker_settings",
        "settings of the broker that the fixture `minibroker` gives, as name=value lines",
        type="linelist",
        default=[],
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Start importing a broker before the conftest files if the last run used one."""
    # Workers of pytest-xdist find the fork server of their run later, and their controller has no
    # tests.
    known = early_config.known_args_namespace
    if WORKER in os.environ or getattr(known, "numprocesses", None) or getattr(known, "tx", None):
        return
    if _was_used(early_config):
        from minibroker.testing.lease import fork_server_of_process

        fork_server_of_process().preload()


def _was_used(early_config: pytest.Config) -> bool:
    """Whether the last run used a broker, when there is no ``config.cache`` yet."""
    with suppress(OSError, ValueError):  # Without a cache, or if its plugin is disabled.
        folder = os.path.expandvars(Path(early_config.getini("cache_dir")).expanduser())
        used = Path(early_config.rootpath, folder, "v", USED).read_bytes()
        return used.strip() == b"true"
    return False


def pytest_configure(config: pytest.Config) -> None:
    """Start importing a broker if the last run used one."""
    run = config.stash[RUN] = PluginRun(config)
    cache = getattr(config, "cache", None)
    is_controller = run.run_id is None and getattr(config.option, "tx", None)
    likely = cache is not None and cache.get(USED, False) and not is_controller
    if run.run_id is not None or likely:
        from minibroker.testing.lease import fork_server_of_process

        fork_server = fork_server_of_process(run.run_id)
        if likely:
            fork_server.preload()


class PluginRun:
    """State of this process of a test run."""

    def __init__(self, config: pytest.Config) -> None:
        worker = getattr(config, "workerinput", None)
        self.workers = int(worker["workercount"]) if worker else 1
        self.worker_id = str(worker["workerid"]) if worker else "main"
        self.run_id = str(worker["testrunuid"]) if worker else None
        self.wanted: list[str] = config.getini("minibroker_settings")
        self.counter = itertools.count(1)
        self.broker: MiniBroker | None = None

    def begin(self) -> MiniBroker:
        """Return the broker of the run, starting it if it is not running."""
        if self.broker is None:
            from minibroker.testing.broker import MiniBroker
            from minibroker.testing.lease import fork_server_of_process

            fork_server = fork_server_of_process()
            self.run_id = fork_server.run_id
            pairs = (line.partition("=") for line in self.wanted)
            self.broker = MiniBroker(
                settings={name.strip(): value.strip() for name, _, value in pairs},
                fork_server=fork_server,
                share="session",
                guarded=self.workers > 1,
            )
            self.broker.begin()
        return self.broker

    def fresh_name(self, test: str) -> str:
        """Return a unique name for a topic or a group, also across runs."""
        readable = re.sub(r"[^A-Za-z0-9-]+", "-", test)[:NAME_MAX].strip("-")
        return f"{readable}-{(self.run_id or '')[:12]}-{self.worker_id}-{next(self.counter)}"


RUN: Final = pytest.StashKey[PluginRun]()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Start the broker as soon as one test is known to use it."""
    if FIXTURES.isdisjoint(getattr(item, "fixturenames", ())) or item.config.option.collectonly:
        return
    item.config.stash[RUN].begin()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Remember for the next run whether a broker is used."""
    cache = getattr(session.config, "cache", None)
    used = session.config.stash[RUN].broker is not None
    if cache is not None and session.items and cache.get(USED, False) != used:
        cache.set(USED, used)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close the lease; the last worker waits for the broker's end."""
    broker = config.stash[RUN].broker
    if broker is not None:
        broker.stop()


@pytest.fixture(scope="session", name="minibroker")
def minibroker_fixture(request: pytest.FixtureRequest) -> MiniBroker:
    """The broker of this test run; under pytest-xdist all workers share it."""
    return request.config.stash[RUN].begin().start()


@pytest.fixture
def minibroker_topic(request: pytest.FixtureRequest, minibroker: MiniBroker) -> Iterator[str]:
    """Name of a topic for this test only: one partition, deleted afterwards."""
    from minibroker.client.control import ControlError

    name = minibroker.create_topic(request.config.stash[RUN].fresh_name(request.node.name))
    yield name
    with suppress(ControlError, OSError):  # the test may have deleted it, or stopped the broker
        minibroker.delete_topic(name)


@pytest.fixture
def minibroker_group(request: pytest.FixtureRequest) -> str:
    """A group id for this test only."""
    request.config.stash[RUN].begin()
    return request.config.stash[RUN].fresh_name(request.node.name)


@pytest.fixture
def minibroker_faults(minibroker: MiniBroker) -> Iterator[Faults]:
    """Fault rules of this test; it fails if one of them never fired."""
    faults = minibroker.faults
    yield faults
    with suppress(OSError):  # the broker may have been stopped
        faults.clear()


@pytest.fixture
def minibroker_restored(minibroker: MiniBroker) -> Iterator[MiniBroker]:
    """The broker, which returns after the test to its state before the test."""
    snapshot = minibroker.snapshot()
    yield minibroker
    with suppress(OSError):  # the test may have stopped the broker
        minibroker.restore(snapshot)
        minibroker.remove_snapshot(snapshot)


@pytest.fixture
def minibroker_journal(minibroker: MiniBroker) -> Iterator[RecordedJournal]:
    """What happens during this test, with assertions about it."""
    journal = minibroker.journal.start()
    yield journal
    with suppress(OSError):  # the broker may have been stopped
        journal.stop()


@pytest.fixture
def minibroker_namespace(minibroker: MiniBroker) -> Iterator[BrokerNamespace]:
    """A part of the broker for this test, whose topics and groups may have any names."""
    with minibroker.namespace() as namespace:
        yield namespace


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Fail a test that passed although a fault rule of it never fired."""
    result = yield
    faults = pyfuncitem.funcargs.get("minibroker_faults")
    if faults is not None:
        cast("Faults", faults).check()
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start a new broker if the shared one died, so that only one test fails because of it."""
    broker = item.config.stash[RUN].broker
    if broker is not None and _uses_broker(item) and broker.ended() is not None:
        broker.restart()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of the broker's log, and how it ended, to the report of a failed test."""
    report = yield
    broker = item.config.stash[RUN].broker
    if report.failed and broker is not None and _uses_broker(item):
        ended = broker.ended()
        if ended is not None:
            text = f"The broker died: {ended}. The next test gets a new one."
            report.sections.append(("minibroker", text))
        lines = broker.log().splitlines()[-LOG_LINES_MAX:]
        if lines:
            report.sections.append(("minibroker log", "\n".join(lines)))
    return report


def _uses_broker(item: pytest.Item) -> bool:
    return "minibroker" in getattr(item, "fixturenames", ())
