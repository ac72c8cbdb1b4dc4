"""The ingest job and the broker are killed repeatedly: the table contains each event once.

A kill follows a sign of progress: staged files, a commit, or Spark's checkpoint. The kind of sign,
its number and the delay after it are drawn from a printed seed; ``INGEST_SEED`` draws the same
again, as far as timing allows. Kills go on for ``INGEST_KILLS_S`` seconds.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import duckdb
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from minibroker.lab.activity.events import TOPIC
from system_tests.harness.brokers import RunningBroker, free_port, start_minibroker
from system_tests.harness.processes import is_running, tree
from system_tests.harness.waiting import SPARK_PATIENCE_S, wait_until
from system_tests.pipeline.standby_job import Standby
from tests.pipeline.random_events import event, written

pytestmark = [pytest.mark.minibroker, pytest.mark.java]

SEED = int(os.environ.get("INGEST_SEED", time.time_ns() % 1_000_000))
KILLS_S = float(os.environ.get("INGEST_KILLS_S", "60"))
KILLS_MIN = 4
PARTITIONS = 3
JUNK_EVERY = 97
PROGRESS_PATHS = (
    "_staging/*/all/place=*/*",
    "_commits/*.json",
    "_checkpoints/*/offsets/*",
    "_staging",
)
"""Paths below the table; the job is killed when one of them changes."""
CHANGES_MAX = 3
"""Largest number of changes before the kill."""
KILL_DELAY_MAX_S = 0.3
BROKER_TOO = ("no", "no", "no", "no", "before", "after")
"""Whether the broker is killed too: before the job starts, or after."""

Changes = set[tuple[Path, int]]


class EventProducer(threading.Thread):
    """Produces events until it is stopped."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        options = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20}
        self._producer = Producer({**options, "message.timeout.ms": 120_000, "log_level": 0})
        self._stopping = threading.Event()
        self.count = 0
        self.junk = 0

    def run(self) -> None:
        chance = random.Random(SEED)
        while not self._stopping.wait(0.05):
            for _ in range(20):
                raw = written(event(self.count, chance))
                self._producer.produce(TOPIC, raw, partition=self.count % PARTITIONS)
                self.count += 1
                if self.count % JUNK_EVERY == 0:
                    self._producer.produce(TOPIC, b"junk", partition=0)
                    self.junk += 1
            self._producer.poll(0)

    def finish(self) -> None:
        self._stopping.set()
        self.join(SPARK_PATIENCE_S)
        assert self._producer.flush(SPARK_PATIENCE_S) == 0


class KillScenario:
    """A broker that is restarted with its data and address, and the job that reads from it."""

    def __init__(self, folder: Path) -> None:
        self._listener = f"PLAINTEXT://127.0.0.1:{free_port()}"
        self._data = folder / "data"
        self._printed = folder / "job.log"
        self.table = folder / "activity"
        self.broker = self._start()
        self._next = Standby(self._printed)
        self.job: Standby | None = None

    def _start(self) -> RunningBroker:
        return start_minibroker(data_dir=self._data, listener=self._listener)

    def begin_job(self, *, follow: bool) -> Standby:
        """Start the standby job and, if it will be killed, prepare another standby."""
        self.job = self._next
        words = ["--from", self.broker.bootstrap_servers, "--into", str(self.table)]
        self.job.run("ingest", *words, *(["--follow"] if follow else []))
        if follow:
            self._next = Standby(self._printed)
        return self.job

    def kill_broker(self) -> None:
        family = tree(self.broker.pid)
        for pid in family:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not [pid for pid in family if is_running(pid)], "the broker to end")
        self.broker.forget()
        self.broker = self._start()

    def changes(self, pattern: str) -> Changes:
        """The matching paths with their modification times; a killed job may have left some."""
        found = set()
        for path in self.table.glob(pattern):
            with suppress(FileNotFoundError):
                found.add((path, path.stat().st_mtime_ns))
        return found

    def end(self) -> None:
        for job in (self.job, self._next):
            if job is not None:
                job.kill()
        self.broker.stop()
        self.broker.forget()


@pytest.fixture
def scenario(memory_folder: Path, fresh: Callable[[str], str]) -> Iterator[KillScenario]:
    folder = memory_folder / fresh("ingest")
    folder.mkdir()
    running = KillScenario(folder)
    yield running
    running.end()


def keys(table: Path) -> list[tuple[int, int]]:
    """(sequence, how often) of every event in the table."""
    query = f"select sequence, count(*) from '{table}/*/*/*.parquet' group by all order by all"
    return duckdb.execute(query).fetchall()


def wait_for_progress(
    scenario: KillScenario, job: Standby, pattern: str, times: int, *, may_end: bool
) -> None:
    """Wait until a matching path has changed ``times`` times, or the job has ended."""
    before = scenario.changes(pattern)
    for _ in range(times):

        def has_changed(before: Changes = before) -> bool:
            assert may_end or not job.has_ended(), job.printed()
            return job.has_ended() or bool(scenario.changes(pattern) - before)

        wait_until(has_changed, f"{pattern} to change", within_s=SPARK_PATIENCE_S, pause_s=0.002)
        before = scenario.changes(pattern)


def test_ingest_kills_keep_each_event_exactly_once(scenario: KillScenario) -> None:
    print(f"INGEST_SEED={SEED}")
    chance = random.Random(SEED)
    admin = AdminClient({"bootstrap.servers": scenario.broker.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result()
    producer = EventProducer(scenario.broker.bootstrap_servers)
    producer.start()
    ends = time.monotonic() + KILLS_S
    kills = broker_kills = 0
    while kills < KILLS_MIN or time.monotonic() < ends:
        job = scenario.begin_job(follow=True)
        with_broker = chance.choice(BROKER_TOO)
        if with_broker == "before":
            scenario.kill_broker()
        pattern, times = chance.choice(PROGRESS_PATHS), chance.randint(1, CHANGES_MAX)
        wait_for_progress(scenario, job, pattern, times, may_end=with_broker == "before")
        if with_broker == "after":
            scenario.kill_broker()
        broker_kills += with_broker != "no"
        job.kill(chance.uniform(0, KILL_DELAY_MAX_S))
        kills += 1
    producer.finish()
    scenario.begin_job(follow=False).wait()
    print(f"killed the job {kills} times, the broker {broker_kills}, with {producer.count} events")
    assert keys(scenario.table) == [(sequence, 1) for sequence in range(producer.count)]
    quarantined = duckdb.execute(
        f"select count(*) from '{scenario.table}-quarantine/*.parquet'"
    ).fetchall()
    assert quarantined == [(producer.junk,)]
