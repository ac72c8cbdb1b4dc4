"""The measures, one function each, the same for every peer.

Owns amounts, warm-ups and units; it starts no peer (except for cold starts) and prints nothing.
Invariant: a measure leaves the peer unchanged, except for its own topics, and returns figures by
row name, so that runs can be repeated and peers interleaved.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from confluent_kafka.admin import AdminClient, NewTopic

from system_tests.benchmarks.client import RunFailed, run, waiting_for_servers
from system_tests.benchmarks.peers import COMPILED_TREE, KAFKA, MINIBROKER, Peer
from system_tests.harness.brokers import (
    KAFKA_JVM,
    RunningBroker,
    format_kafka,
    launch_kafka,
    start_minibroker,
    wait_for_port,
)
from system_tests.harness.jars import ToolchainMissing, import_path
from system_tests.harness.line_process import ProcessEnded
from system_tests.harness.processes import pss_bytes, tree
from system_tests.harness.waiting import wait_until

Figures = dict[str, float]

RECORD_BYTES, SMALL_RECORD_BYTES = 1000, 100
PARTITIONS = 4
METADATA_TOPICS, METADATA_PARTITIONS = 50, 6
BUSY_SAMPLE_S = 1.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
RESPONSE_TIMEOUT_S = 20.0


def create_topic(peer: Peer, stem: str, partitions: int) -> str:
    topic = f"{stem}-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": peer.servers, "log_level": 0})
    [made] = admin.create_topics([NewTopic(topic, partitions, 1)]).values()
    made.result(RESPONSE_TIMEOUT_S)
    wait_until(
        lambda: topic in admin.list_topics(timeout=RESPONSE_TIMEOUT_S).topics,
        f"{topic} to exist",
    )
    return topic


def delete_topic(peer: Peer, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": peer.servers, "log_level": 0})
    for each in admin.delete_topics([topic]).values():
        each.result(RESPONSE_TIMEOUT_S)


@contextmanager
def topic_of(peer: Peer, stem: str, partitions: int) -> Iterator[str]:
    """A topic for the time of a measure; a peer that keeps nothing creates it by a first record."""
    if not peer.keeps_everything:
        topic = f"{stem}-{uuid.uuid4().hex[:8]}"
        run("one", peer.servers, topic, 1, SMALL_RECORD_BYTES)
        yield topic
        return
    topic = create_topic(peer, stem, partitions)
    yield topic
    delete_topic(peer, topic)


def machine_busy_share() -> float:
    """Return the share of processor time in use, measured over a second."""

    def ticks() -> tuple[int, int]:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
        return sum(fields[:8]), fields[3] + fields[4]

    all_before, idle_before = ticks()
    time.sleep(BUSY_SAMPLE_S)
    all_after, idle_after = ticks()
    return 1 - (idle_after - idle_before) / max(all_after - all_before, 1)


def touch_memory(folder: Path, size: int) -> None:
    """Write `size` bytes to the folder's storage once, and free them.

    A virtual machine's memory is slow on first use, and brokers keep deleted topics for a minute:
    without this, the first runs would measure the hypervisor.
    """
    if size > shutil.disk_usage(folder).free // 2:
        return
    piece = bytes(range(256)) * 4096 * 16
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(size // len(piece)):
            file.write(piece)


def keep_bytecode(folder: Path) -> None:
    """Let the programs that are started keep their bytecode in a folder.

    An installed program has bytecode. Without it, a start would take twice as long.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")


def use_compiled_tree(tree: Path) -> None:
    """Let the programs that are started import minibroker from the compiled tree.

    Raises `ToolchainMissing` without it.
    """
    if not (tree / ".built").exists():
        raise ToolchainMissing(f"{tree} is not there: `make compiled` or `make bench` builds it")
    os.environ["PYTHONPATH"] = import_path(tree)
    os.environ["PYTHONSAFEPATH"] = "1"  # Not from the current folder.


def cpu_seconds(root: int) -> float:
    """Return the processor time of a process and its descendants so far."""
    ticks = 0
    for pid in tree(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_S


def throughput(peer: Peer, records: int) -> Figures:
    """Produce into a fresh topic and consume it again, in MB/s of values."""
    figures: Figures = {}
    for mode, seen, cpu_s in _produced_and_consumed(peer, records, RECORD_BYTES):
        megabytes = seen["bytes"] / 1e6
        figures[f"{mode} 1,000-byte records"] = megabytes / seen["seconds"]
        figures[f"{mode}: broker's CPU per GB"] = cpu_s / megabytes * 1000
        figures[f"{mode}: client's CPU share"] = seen["client_cpu_seconds"] / seen["seconds"] * 100
    return figures


def small_throughput(peer: Peer, records: int) -> Figures:
    """Do the same with 100-byte records, in records per second."""
    return {
        f"{mode} 100-byte records": records / seen["seconds"]
        for mode, seen, _ in _produced_and_consumed(peer, records, SMALL_RECORD_BYTES)
    }


def _produced_and_consumed(
    peer: Peer, records: int, size: int
) -> Iterator[tuple[str, Figures, float]]:
    """Yield each mode with the client's figures and the broker's processor time."""
    with topic_of(peer, "throughput", PARTITIONS) as topic:
        for mode in ("produce", "consume") if peer.keeps_everything else ("produce",):
            used = cpu_seconds(peer.pid)
            seen = run(mode, peer.servers, topic, records, size, PARTITIONS)
            yield mode, seen, cpu_seconds(peer.pid) - used


def one_at_a_time(peer: Peer, count: int) -> Figures:
    with topic_of(peer, "one", 1) as topic:
        seen = run("one", peer.servers, topic, count, SMALL_RECORD_BYTES)
    return {
        "one acknowledged 100-byte record, median": seen["median_us"],
        "one acknowledged 100-byte record, p99": seen["p99_us"],
    }


def metadata(peer: Peer, count: int) -> Figures:
    """Request the metadata of all topics: 50 with 6 partitions each, and any others."""
    topics = [
        create_topic(peer, f"metadata-{i}", METADATA_PARTITIONS) for i in range(METADATA_TOPICS)
    ]
    try:
        seen = run("metadata", peer.servers, "-", count)
    finally:
        for topic in topics:
            delete_topic(peer, topic)
    return {
        "Metadata of 50 topics, median": seen["median_us"],
        "Metadata of 50 topics, p99": seen["p99_us"],
    }


def idle_memory(peer: Peer) -> Figures:
    """Return the memory of all its processes, shared pages counted once."""
    return {"memory at rest": sum(pss_bytes(pid) for pid in tree(peer.pid)) / 1e6}


def reset(peer: Peer, count: int) -> Figures:
    """Time `POST /v1/reset` on a broker that holds topics, records and offsets."""
    assert peer.control_url is not None
    url = urlsplit(peer.control_url)
    connection = HTTPConnection(url.hostname or "127.0.0.1", url.port, timeout=RESPONSE_TIMEOUT_S)
    times = []
    for _ in range(count):
        for number in range(5):
            topic = create_topic(peer, f"reset-{number}", 2)
            run("one", peer.servers, topic, 10, 100)
        began = time.perf_counter()
        connection.request("POST", "/v1/reset", body=b"", headers={"Content-Length": "0"})
        answer = connection.getresponse()
        answer.read()
        times.append(time.perf_counter() - began)
        if answer.status >= 300:
            raise RunFailed(f"reset answered {answer.status}")
    connection.close()
    return {"reset of 5 topics": statistics.median(times) * 1e3}


def cold_start(name: str, folder: Path) -> Figures:
    """Time from starting the program to the first acknowledged record; the client is ready before.

    Kafka's folder is formatted in advance, which takes another second or two.
    """
    directory = Path(tempfile.mkdtemp(prefix="cold-start-", dir=folder))
    client = waiting_for_servers("first")
    broker: RunningBroker | None = None
    try:
        if name == KAFKA:
            properties, port = format_kafka(directory / "kafka")
            began = time.perf_counter()
            broker = launch_kafka(properties, port, jvm=KAFKA_JVM)
            wait_for_port(broker, pause_s=0.002)
        else:
            assert name == MINIBROKER
            began = time.perf_counter()
            broker = start_minibroker()
        client.ask(broker.bootstrap_servers)
        took = time.perf_counter() - began
    except ProcessEnded as error:
        raise RunFailed(f"the first record was not acknowledged by {name}") from error
    finally:
        client.close()
        if broker is not None:
            broker.stop()
            broker.forget()
        shutil.rmtree(directory, ignore_errors=True)
    return {"cold start to first acknowledged record": took * 1e3}


CONFTEST = """
import json, os, time, pytest

@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    began = time.perf_counter()
    result = yield
    if fixturedef.argname == "minibroker":
        note("fixture", time.perf_counter() - began)
    return result

def note(name, seconds):
    with open(os.environ["FIGURES"], "a") as figures:
        figures.write(json.dumps([name, seconds]) + "\\n")
"""
TEST = """
import time
from conftest import note
from minibroker.testing import MiniBroker

def test_fixture(minibroker):
    assert minibroker.bootstrap_servers

def test_more():
    for number in range(7):
        started = time.perf_counter()
        with MiniBroker():
            note("own" if number < 2 else "more", time.perf_counter() - started)
"""


OWN_BROKER: Final = "MiniBroker() in a running pytest, the first two"
MORE_BROKERS: Final = "MiniBroker() in a running pytest, from the third on"


def fixture_start(folder: Path, checkout: Path = COMPILED_TREE) -> Figures:
    """Run pytest in a small new project and measure its fixtures."""
    project = Path(tempfile.mkdtemp(prefix="fixture-", dir=folder))
    (project / "conftest.py").write_text(CONFTEST)
    (project / "test_start.py").write_text(TEST)
    figures = project / "figures"
    environment = {**os.environ, "FIGURES": str(figures), "PYTHONPATH": import_path(checkout)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", str(project)]
    if not _plugin_is_installed():
        command += ["-p", "minibroker.testing.plugin"]
    seen: dict[str, list[float]] = defaultdict(list)
    for _ in range(2):  # The plugin remembers that the last run used a broker.
        done = subprocess.run(
            command,
            check=False,
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode != 0:
            raise RunFailed(f"pytest: {done.stdout[-800:]}")
    for line in figures.read_text().splitlines():
        name, seconds = json.loads(line)
        seen[name].append(seconds)
    shutil.rmtree(project)
    return {
        "fixture `minibroker`, first run of pytest": seen["fixture"][0] * 1e3,
        "fixture `minibroker`, later runs of pytest": seen["fixture"][1] * 1e3,
        OWN_BROKER: statistics.median(seen["own"]) * 1e3,
        MORE_BROKERS: statistics.median(seen["more"]) * 1e3,
    }


def _plugin_is_installed() -> bool:
    from importlib.metadata import entry_points

    return any(
        entry.value.startswith("minibroker.testing") for entry in entry_points(group="pytest11")
    )
