from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from minibroker.testing import AsyncMiniBroker, MiniBroker
from tests.testing.conftest import PLUGINS_AND_CACHE_OFF, PLUGINS_OFF

USES_ALL = """
    def test_one(minibroker, minibroker_topic, minibroker_group):
        print("pid", minibroker.pid, minibroker_topic, minibroker_group)
        assert minibroker.control.get("v1", "topics", minibroker_topic)["partitions"]

    def test_two(minibroker, minibroker_topic, minibroker_group):
        print("pid", minibroker.pid, minibroker_topic, minibroker_group)
"""


def said(output: str) -> list[tuple[str, ...]]:
    """Broker's pid, topic and group of each test."""
    return re.findall(r"pid (\d+) (\S+) (\S+)", output)


def test_tests_sharing_a_broker_get_unique_names(
    pytester: pytest.Pytester, is_gone: Callable[[int], bool]
) -> None:
    pytester.makepyfile(USES_ALL)
    result = pytester.runpytest_subprocess("-s", *PLUGINS_AND_CACHE_OFF)
    result.assert_outcomes(passed=2)
    first, second = said(result.stdout.str())
    assert first[0] == second[0]
    assert len({*first[1:], *second[1:]}) == 4
    assert is_gone(int(first[0]))


def test_workers_sharing_a_broker_get_unique_names(
    pytester: pytest.Pytester, is_gone: Callable[[int], bool]
) -> None:
    lines = "\n".join(
        f"""
def test_{index}(minibroker, minibroker_topic, minibroker_group, record_property):
    record_property("said", f"pid {{minibroker.pid}} {{minibroker_topic}} {{minibroker_group}}")
"""
        for index in range(8)
    )
    pytester.makepyfile(lines)
    result = pytester.runpytest_subprocess(
        "-n", "2", "--junitxml=report.xml", *PLUGINS_AND_CACHE_OFF
    )
    result.assert_outcomes(passed=8)
    found = said((pytester.path / "report.xml").read_text())
    pids = {int(pid) for pid, *_ in found}
    assert len(pids) == 1
    assert len({name for _, *names in found for name in names}) == 16
    assert all(is_gone(pid) for pid in pids)


def test_run_without_fixtures_starts_no_broker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_plugin_without_fixtures_imports_no_broker_modules():
            loaded = {name for name in sys.modules if name.startswith("minibroker.")}
            loaded.discard("minibroker._version")
            assert loaded == {"minibroker.testing", "minibroker.testing.plugin"}
        """
    )
    pytester.runpytest_subprocess(*PLUGINS_AND_CACHE_OFF).assert_outcomes(passed=1)


def test_imports_start_early_if_the_last_run_used_fixtures(
    pytester: pytest.Pytester,
) -> None:
    uses = pytester.makepyfile(test_uses="def test_it(minibroker): pass")
    look = pytester.makepyfile(
        test_look="""
        import sys

        def test_it():
            lease = sys.modules.get("minibroker.testing.lease")
            print("fork_server:", lease and lease.fork_server_of_process().pid)
        """
    )
    runs = [
        pytester.runpytest_subprocess("-s", *PLUGINS_OFF, path).stdout.str()
        for path in (look, uses, look, look)
    ]
    assert "fork_server: None" in runs[0]
    assert re.search(r"fork_server: \d+", runs[2])
    assert "fork_server: None" in runs[3]


def test_imports_start_before_conftest_files(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # The runs below have no workers.
    pytester.makeconftest(
        """
        import sys

        lease = sys.modules.get("minibroker.testing.lease")
        print("fork_server:", lease and lease.fork_server_of_process().pid)
        """
    )
    pytester.makepyfile("def test_it(minibroker): pass")
    alone = "-s", *PLUGINS_OFF
    runs = [
        pytester.runpytest_subprocess(*options).stdout.str()
        for options in (alone, alone, (*alone, "-p", "no:cacheprovider"), (*alone, "-n", "1"))
    ]
    assert "fork_server: None" in runs[0]
    assert re.search(r"fork_server: \d+", runs[1])
    assert "fork_server: None" in runs[2]
    assert "fork_server: None" in runs[3]


def test_collect_only_starts_no_broker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(USES_ALL)
    pytester.makeconftest(
        """
        import sys

        def pytest_unconfigure(config):
            print("loaded:", "minibroker.testing.broker" in sys.modules)
        """
    )
    result = pytester.runpytest_subprocess("--collect-only", *PLUGINS_AND_CACHE_OFF)
    result.stdout.fnmatch_lines(["loaded: False"])


def test_broker_uses_settings_of_the_project(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nminibroker_settings =\n    num.partitions = 5\n")
    pytester.makepyfile(
        """
        def test_it(minibroker):
            minibroker.control.post("v1", "topics", name="cats")
            assert len(minibroker.control.get("v1", "topics", "cats")["partitions"]) == 5
        """
    )
    pytester.runpytest_subprocess(*PLUGINS_AND_CACHE_OFF).assert_outcomes(passed=1)


def test_invalid_settings_fail_the_fixture(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nminibroker_settings =\n    num.partition = 5\n")
    pytester.makepyfile("def test_it(minibroker): pass")
    result = pytester.runpytest_subprocess(*PLUGINS_AND_CACHE_OFF)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*did you mean num.partitions?*"])


def test_topic_is_deleted_after_its_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_one(minibroker_topic): pass

        def test_two(minibroker):
            topics = minibroker.control.get("v1", "topics")["topics"]
            assert [topic["name"] for topic in topics if not topic["internal"]] == []
        """
    )
    pytester.runpytest_subprocess(*PLUGINS_AND_CACHE_OFF).assert_outcomes(passed=2)


def test_reset_of_a_shared_broker_is_rejected(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import pytest
        from minibroker.testing import MiniBroker
        from minibroker.testing.broker import SharedBrokerError

        def test_it(minibroker):
            with pytest.raises(SharedBrokerError, match="with MiniBroker"):
                minibroker.reset()
            with MiniBroker() as own:
                own.reset()
        """
    )
    pytester.runpytest_subprocess("-n", "2", *PLUGINS_AND_CACHE_OFF).assert_outcomes(passed=1)


def test_killed_run_leaves_no_process_or_directory(
    pytester: pytest.Pytester, is_gone: Callable[[int], bool]
) -> None:
    pytester.makepyfile(
        """
        import os, re
        from pathlib import Path

        def test_it(minibroker):
            processes = minibroker.control.get("v1", "health")["processes"]
            opened = map(os.readlink, Path(f"/proc/{minibroker.pid}/fd").iterdir())
            home = next(filter(None, (re.match(".*/minibroker-[^/]+", path) for path in opened)))
            pids = [process["pid"] for process in processes]
            print(home[0], minibroker.pid, *pids, flush=True)
            os.read(0, 1)
        """
    )
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-s", "-q", *PLUGINS_AND_CACHE_OFF],
        cwd=pytester.path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    home, *pids = run.stdout.readline().split()
    assert Path(home).exists()
    assert len(pids) > 4
    run.kill()
    run.communicate()
    assert all(is_gone(int(pid)) for pid in pids)
    assert not Path(home).exists()


def test_broker_that_dies_is_reported_and_replaced(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, signal

        def test_first(minibroker):
            assert minibroker.create_topic("cats")
            os.kill(minibroker.pid, signal.SIGKILL)
            while minibroker.ended() is None:
                pass
            raise AssertionError("its roles may answer for a moment longer")

        def test_second(minibroker, minibroker_topic):
            assert minibroker.control.get("v1", "topics", minibroker_topic)
        """
    )
    result = pytester.runpytest_subprocess(*PLUGINS_AND_CACHE_OFF)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*The broker died: it was killed by SIGKILL. The next test gets a new one.*"]
    )


@pytest.mark.parametrize(
    ("options", "outcomes"),
    [((), {"passed": 2, "warnings": 2}), (("-W", "error"), {"passed": 2, "errors": 2})],
)
def test_process_that_dies_by_itself_is_a_warning_of_its_test(
    pytester: pytest.Pytester, options: tuple[str, ...], outcomes: dict[str, int]
) -> None:
    pytester.makepyfile(
        """
        import os, signal

        def abort(broker, name):
            processes = broker.control.get("v1", "health")["processes"]
            pid = next(process["pid"] for process in processes if process["name"] == name)
            os.kill(pid, signal.SIGABRT)
            while f"(pid {pid}) died" not in broker.log():
                pass

        def test_shared(minibroker, minibroker_topic):
            abort(minibroker, "acceptor")

        def test_own(minibroker_own, minibroker_topic):
            abort(minibroker_own, "worker-0")
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:randomly", *options, *PLUGINS_AND_CACHE_OFF)
    result.assert_outcomes(**outcomes)
    result.stdout.fnmatch_lines(
        ["*BrokerFailed: acceptor (pid *) died: *", "*BrokerFailed: combined-0 (pid *) died: *"]
    )


def test_dead_shared_broker_is_replaced_once_for_all_workers(
    pytester: pytest.Pytester, is_gone: Callable[[int], bool]
) -> None:
    killer = """
        import os, signal
        from pathlib import Path

        def test_first(minibroker):
            while not Path("waiting").exists():
                pass
            os.kill(minibroker.pid, signal.SIGKILL)
            while minibroker.ended() is None:
                pass
            raise AssertionError("the broker is dead")
        """
    other = """
        from pathlib import Path

        def test_first(minibroker):
            Path("waiting").touch()
            while minibroker.ended() is None:
                pass
        """
    # The broker ends with its last lease: neither worker may end before the other has the broker.
    both = """

        def test_second(minibroker, minibroker_topic, record_property):
            assert minibroker.control.get("v1", "topics", minibroker_topic)
            record_property("said", f"pid {minibroker.pid}")
            Path(f"second-{__name__}").touch()
            while len(list(Path().glob("second-*"))) < 2:
                pass
        """
    pytester.makepyfile(test_killer=killer + both, test_other=other + both)
    result = pytester.runpytest_subprocess(
        "-n", "2", "--dist=loadfile", "--junitxml=report.xml", *PLUGINS_AND_CACHE_OFF
    )
    result.assert_outcomes(passed=3, failed=1)
    first, second = re.findall(r"pid (\d+)", (pytester.path / "report.xml").read_text())
    assert first == second
    assert is_gone(int(first))


def test_restored_broker_is_as_before_each_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture(scope="module")
        def prepared(minibroker):
            minibroker.create_topic("cats")

        def topics(broker):
            found = broker.control.get("v1", "topics")["topics"]
            return sorted(topic["name"] for topic in found if not topic["internal"])

        @pytest.mark.parametrize("run", range(2))
        def test_it(prepared, minibroker_restored, run):
            assert topics(minibroker_restored) == ["cats"]
            minibroker_restored.create_topic("dogs")
            minibroker_restored.delete_topic("cats")

        def test_last(minibroker):
            assert topics(minibroker) == ["cats"]
            assert minibroker.control.get("v1", "snapshots") == {"snapshots": []}
        """
    )
    pytester.runpytest_subprocess(*PLUGINS_AND_CACHE_OFF).assert_outcomes(passed=3)


def test_tests_with_namespaces_use_the_same_names(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient

        @pytest.mark.parametrize("run", range(4))
        def test_it(minibroker_namespace, run):
            servers = {"bootstrap.servers": minibroker_namespace.bootstrap_servers}
            assert list(AdminClient(servers).list_topics(timeout=60).topics) == []
            producer = Producer(servers)
            producer.produce("orders", b"value")
            assert producer.flush(60) == 0
            assert list(AdminClient(servers).list_topics(timeout=60).topics) == ["orders"]
        """
    )
    pytester.runpytest_subprocess("-n", "2", *PLUGINS_AND_CACHE_OFF).assert_outcomes(passed=4)


def test_marker_gives_partitions_and_a_broker_with_settings(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, subprocess, sys
        import pytest

        pytestmark = pytest.mark.minibroker(partitions=3, configs={"retention.ms": 5})

        def test_topic(minibroker, minibroker_topic):
            topic = minibroker.control.get("v1", "topics", minibroker_topic)
            assert (len(topic["partitions"]), topic["configs"]) == (3, {"retention.ms": "5"})

        SETTINGS = {"num.partitions": 7}

        @pytest.mark.minibroker(partitions=2, settings=SETTINGS, seed={"topics": {"s": {}}})
        def test_own(minibroker_own, minibroker_topic, minibroker_faults, minibroker_environment):
            topics = minibroker_own.control.get("v1", "topics")["topics"]
            counts = {topic["name"]: topic["partitions"] for topic in topics}
            assert (counts["s"], counts[minibroker_topic]) == (7, 2)
            assert minibroker_environment == minibroker_own.bootstrap_servers
            assert os.environ["KAFKA_BOOTSTRAP_SERVERS"] == minibroker_environment
            assert os.environ["MINIBROKER_CONTROL"] == minibroker_own.control_url
            command = [sys.executable, "-m", "minibroker", "topics", "list"]
            listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            assert minibroker_topic in listed

        def test_factory(minibroker_factory):
            first, second = minibroker_factory({"num.partitions": 2}), minibroker_factory()
            assert first.bootstrap_servers != second.bootstrap_servers

        def test_environment_is_restored():
            assert "KAFKA_BOOTSTRAP_SERVERS" not in os.environ

        @pytest.mark.minibroker(settings=SETTINGS)
        def test_shared(minibroker):
            pass
        """
    )
    result = pytester.runpytest_subprocess(*PLUGINS_AND_CACHE_OFF)
    result.assert_outcomes(passed=4, errors=1)
    result.stdout.fnmatch_lines(["*settings of @pytest.mark.minibroker can't*use minibroker_own*"])


def test_unknown_argument_of_the_marker_is_explained(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.minibroker(partition=3)
        def test_one(minibroker_topic):
            pass
        """
    )
    result = pytester.runpytest_subprocess(*PLUGINS_AND_CACHE_OFF)
    assert result.ret != 0
    result.stderr.fnmatch_lines(["*takes settings=*partitions=*not 'partition'*"])


def test_existing_kafka_replaces_the_broker(
    pytester: pytest.Pytester, minibroker: MiniBroker
) -> None:
    pytester.makepyfile(
        """
        import pytest

        def test_messages(minibroker, minibroker_topic, minibroker_environment):
            minibroker.produce(minibroker_topic, ["a"])
            assert minibroker.wait_for(minibroker_topic)[0].text == "a"
            print("at", minibroker.bootstrap_servers, minibroker_environment)

        @pytest.mark.minibroker(partitions=3, configs={"retention.ms": 60000})
        def test_seed(minibroker, minibroker_topic, minibroker_group):
            assert len(minibroker.produce(minibroker_topic, ["a", "b", "c"])) == 3
            name = f"{minibroker_group}-s"
            seed = {"topics": {name: {"records": ["x", {"key_base64": "/w==", "value": "y"}]}}}
            assert minibroker.seed(seed)["records"] == 2
            assert minibroker.seed(seed)["existing"] == [name]
            assert minibroker.messages(name)[1].key == b"\\xff"
            minibroker.delete_topic(name)

        def test_clock(minibroker):
            minibroker.advance(1000)

        def test_users(minibroker):
            minibroker.seed({"users": {"a": "b"}})

        def test_faults(minibroker_faults): ...
        def test_journal(minibroker_journal): ...
        def test_namespace(minibroker_namespace): ...
        def test_restored(minibroker_restored): ...
        def test_own(minibroker_own): ...
        """
    )
    servers = minibroker.bootstrap_servers
    result = pytester.runpytest_subprocess(
        "--minibroker-external", servers, "-rsP", *PLUGINS_AND_CACHE_OFF
    )
    result.assert_outcomes(passed=2, skipped=7)
    result.stdout.fnmatch_lines(
        [
            f"at {servers} {servers}",
            f"SKIPPED*advance() needs minibroker; the tests use the Kafka at {servers}",
        ]
    )
    for reason in ("faults needs minibroker", "snapshot() needs", "a seed with users needs"):
        assert reason in result.stdout.str()


async def _produce_async(minibroker_async: AsyncMiniBroker, topic: str) -> str:
    await minibroker_async.produce(topic, ["a"])
    (message,) = await minibroker_async.wait_for(topic)
    return message.text


def test_async_broker_is_the_shared_one(
    minibroker: MiniBroker, minibroker_async: AsyncMiniBroker, minibroker_topic: str
) -> None:
    assert minibroker_async.bootstrap_servers == minibroker.bootstrap_servers
    assert asyncio.run(_produce_async(minibroker_async, minibroker_topic)) == "a"
