"""The pytest plugin: a broker for the test run, unique topics and unique groups.

Owns the fixtures, the marker and when the broker starts. It must never import more than itself in a
run that uses none of them. Invariant: under pytest-xdist all workers of a run share one broker, and
no two tests of any run get the same topic or group; a broker that dies fails one test and is
replaced. The broker starts when the first test that uses it is collected, and is imported at once
if the last run used it, so that it is ready in time.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

if TYPE_CHECKING:
    from minibroker.testing.broker import AsyncMiniBroker, BrokerNamespace, MiniBroker
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
        "minibroker_async",
        "minibroker_environment",
    }
)
MARKER: Final = "minibroker"
MARKED_BROKER: Final = ("settings", "persona", "seed")
"""Arguments of the marker that only a broker of the test's own can have."""
MARKED: Final = (*MARKED_BROKER, "partitions", "configs")
ADDRESS_VARIABLES: Final = ("KAFKA_BOOTSTRAP_SERVERS", "MINIBROKER_BOOTSTRAP_SERVER")
"""The second one is read by minibroker's own commands."""
CONTROL_VARIABLE: Final = "MINIBROKER_CONTROL"
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
    parser.getgroup("minibroker").addoption(
        "--minibroker-external",
        metavar="HOST:PORT",
        help="Use an existing Kafka; tests that need minibroker are skipped.",
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
    config.addinivalue_line(
        "markers",
        "minibroker(*, partitions, configs, settings, persona, seed): of the topic of the fixture "
        "minibroker_topic, and of the broker of the fixture minibroker_own",
    )
    if run.external is not None:
        return
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
        self.external: str | None = config.getoption("--minibroker-external")

    def begin(self) -> MiniBroker:
        """Return the broker of the run, starting it if it is not running."""
        if self.broker is None and self.external is not None:
            from minibroker.testing.external import ExternalKafka

            # It has the calls of a broker, some of which skip the test.
            self.run_id = self.run_id or secrets.token_hex(6)
            self.broker = cast("MiniBroker", ExternalKafka(self.external))
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
    if not _has_own_broker(item):
        item.config.stash[RUN].begin()


def marked(item: pytest.Item) -> dict[str, Any]:
    """Return the arguments of the markers of a test; the closest marker wins."""
    arguments: dict[str, Any] = {}
    for mark in reversed(list(item.iter_markers(MARKER))):
        unknown = [name for name in mark.kwargs if name not in MARKED]
        if mark.args or unknown:
            given = ", ".join(map(repr, [*mark.args, *unknown]))
            known = ", ".join(f"{name}=…" for name in MARKED)
            text = f"{item.nodeid}: @pytest.mark.minibroker takes {known}, not {given}"
            raise pytest.UsageError(text)
        arguments |= mark.kwargs
    return arguments


def _has_own_broker(item: pytest.Item) -> bool:
    """Whether the fixtures of a test are those of its own broker."""
    names = getattr(item, "fixturenames", ())
    return "minibroker_own" in names or not marked(item).keys().isdisjoint(MARKED_BROKER)


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
def minibroker_fixture(request: pytest.FixtureRequest) -> Iterator[MiniBroker]:
    """The broker of this test run; under pytest-xdist all workers share it."""
    broker = request.config.stash[RUN].begin().start()
    yield broker
    broker.stop()


@pytest.fixture
def minibroker_factory(request: pytest.FixtureRequest) -> Iterator[Callable[..., MiniBroker]]:
    """Start brokers that end with the test: ``minibroker_factory(settings={...}, seed=...)``."""
    from contextlib import ExitStack

    from minibroker.testing.broker import MiniBroker

    run = request.config.stash[RUN]
    if run.external is not None:
        pytest.skip(f"a broker of the test's own needs minibroker, not the Kafka at {run.external}")
    with ExitStack() as brokers:

        def start(settings: Mapping[str, object] | None = None, **options: Any) -> MiniBroker:
            return brokers.enter_context(MiniBroker(settings=settings, **options))

        yield start


@pytest.fixture
def minibroker_own(
    request: pytest.FixtureRequest, minibroker_factory: Callable[..., MiniBroker]
) -> MiniBroker:
    """A broker of this test only, with settings, persona and seed of its marker."""
    arguments = marked(request.node)
    return minibroker_factory(
        **{name: arguments[name] for name in MARKED_BROKER if name in arguments}
    )


@pytest.fixture
def _minibroker_of_test(request: pytest.FixtureRequest) -> MiniBroker:
    """The broker of the other fixtures: the test's own, or the shared one."""
    name = "minibroker_own" if _has_own_broker(request.node) else "minibroker"
    broker: MiniBroker = request.getfixturevalue(name)
    return broker


@pytest.fixture
def minibroker_async(_minibroker_of_test: MiniBroker) -> AsyncMiniBroker:
    """The same broker for asyncio and trio: its methods are awaited."""
    from minibroker.testing.broker import AsyncMiniBroker

    return AsyncMiniBroker(_minibroker_of_test)


@pytest.fixture
def minibroker_environment(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, _minibroker_of_test: MiniBroker
) -> str:
    """The address, also in ``KAFKA_BOOTSTRAP_SERVERS`` during the test."""
    for name in ADDRESS_VARIABLES:
        monkeypatch.setenv(name, _minibroker_of_test.bootstrap_servers)
    if request.config.stash[RUN].external is None:
        monkeypatch.setenv(CONTROL_VARIABLE, _minibroker_of_test.control_url)
    return _minibroker_of_test.bootstrap_servers


@pytest.fixture
def minibroker_topic(
    request: pytest.FixtureRequest, _minibroker_of_test: MiniBroker
) -> Iterator[str]:
    """Name of a topic for this test only, deleted afterwards.

    It has one partition, or those of ``@pytest.mark.minibroker(partitions=3, configs={...})``.
    """
    broker, arguments = _minibroker_of_test, marked(request.node)
    name = request.config.stash[RUN].fresh_name(request.node.name)
    broker.create_topic(name, arguments.get("partitions", 1), arguments.get("configs"))
    yield name
    with suppress(RuntimeError, OSError):  # the test may have deleted it, or stopped the broker
        broker.delete_topic(name)


@pytest.fixture
def minibroker_group(request: pytest.FixtureRequest) -> str:
    """A group id for this test only."""
    run = request.config.stash[RUN]
    if not _has_own_broker(request.node):
        run.begin()
    return run.fresh_name(request.node.name)


@pytest.fixture
def minibroker_faults(_minibroker_of_test: MiniBroker) -> Iterator[Faults]:
    """Fault rules of this test; it fails if one of them never fired."""
    faults = _minibroker_of_test.faults
    yield faults
    with suppress(OSError):  # the broker may have been stopped
        faults.clear()


@pytest.fixture
def minibroker_restored(_minibroker_of_test: MiniBroker) -> Iterator[MiniBroker]:
    """The broker, which returns after the test to its state before the test."""
    snapshot = _minibroker_of_test.snapshot()
    yield _minibroker_of_test
    with suppress(OSError):  # the test may have stopped the broker
        _minibroker_of_test.restore(snapshot)
        _minibroker_of_test.remove_snapshot(snapshot)


@pytest.fixture
def minibroker_journal(_minibroker_of_test: MiniBroker) -> Iterator[RecordedJournal]:
    """What happens during this test, with assertions about it."""
    journal = _minibroker_of_test.journal.start()
    yield journal
    with suppress(OSError):  # the broker may have been stopped
        journal.stop()


@pytest.fixture
def minibroker_namespace(_minibroker_of_test: MiniBroker) -> Iterator[BrokerNamespace]:
    """A part of the broker for this test, whose topics and groups may have any names."""
    with _minibroker_of_test.namespace() as namespace:
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
    if "minibroker" in getattr(item, "fixturenames", ()):
        own = [name for name in MARKED_BROKER if name in marked(item)]
        if own:
            text = f"{', '.join(own)} of @pytest.mark.minibroker can't change the shared broker"
            pytest.fail(f"{text}: use minibroker_own instead of minibroker", pytrace=False)
    broker = item.config.stash[RUN].broker
    if broker is not None and _uses_broker(item) and broker.ended() is not None:
        broker.restart()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Warn after each test of processes of the shared broker that ended by themselves."""
    yield
    broker = item.config.stash[RUN].broker
    if broker is not None and _uses_broker(item):
        broker.check()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of the broker's log, and how it ended, to the report of a failed test."""
    report = yield
    own: MiniBroker | None = getattr(item, "funcargs", {}).get("minibroker_own")
    broker = own or item.config.stash[RUN].broker
    if report.failed and broker is not None and (own or _uses_broker(item)):
        ended = broker.ended()
        if ended is not None:
            text = f"The broker died: {ended}. The next test gets a new one."
            report.sections.append(("minibroker", text))
        lines = broker.log().splitlines()[-LOG_LINES_MAX:]
        if lines:
            report.sections.append(("minibroker log", "\n".join(lines)))
    return report


def _uses_broker(item: pytest.Item) -> bool:
    return not FIXTURES.isdisjoint(getattr(item, "fixturenames", ())) and not _has_own_broker(item)
