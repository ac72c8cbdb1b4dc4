"""The job that follows a live broker, and the broker, are killed: the table has each event once.

A kill comes while files are written aside, while a step is being committed, while Spark writes its
checkpoint, or before the job has begun; which of them is drawn from a seed. ``INGEST_KILLS=20``
kills the job that often; otherwise it is few times, as a job takes seconds to come up.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import duckdb
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from minibroker.activity.schema import TOPIC
from system_tests.conftest import without_toolchain
from system_tests.harness.brokers import RunningBroker, free_port, start_minibroker
from system_tests.harness.jars import ToolchainMissing, connector_jars
from system_tests.harness.processes import is_running, tree
from system_tests.harness.waiting import wait_until
from tests.pipeline.made import event, written

pytestmark = [pytest.mark.minibroker, pytest.mark.java, pytest.mark.timeout(900)]

SEED = 20_261_120
JOB_KILLS = int(os.environ.get("INGEST_KILLS", "4"))
PARTITIONS = 3
JUNK_EVERY = 97
MOMENTS = ("_staging/*/all/place=*/*", "_commits/*.json", "_checkpoints/*/offsets/*", "_staging")
"""Paths below the table; the job is killed when one of them changes."""


Changes = set[tuple[Path, int]]


class Told(threading.Thread):
    """Goes on producing events until it is told to stop."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        options = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20}
        self._producer = Producer({**options, "message.timeout.ms": 120_000, "log_level": 0})
        self._enough = threading.Event()
        self.count = 0
        self.junk = 0

    def run(self) -> None:
        chance = random.Random(SEED)
        while not self._enough.wait(0.05):
            for _ in range(20):
                raw = written(event(self.count, chance))
                self._producer.produce(TOPIC, raw, partition=self.count % PARTITIONS)
                self.count += 1
                if self.count % JUNK_EVERY == 0:
                    self._producer.produce(TOPIC, b"junk", partition=0)
                    self.junk += 1
            self._producer.poll(0)

    def finish(self) -> None:
        self._enough.set()
        self.join(10)
        assert self._producer.flush(60) == 0


class Job:
    """``minibroker pipeline ingest`` in processes of its own, which are killed together."""

    def __init__(self, bootstrap: str, into: Path, output: IO[bytes], *, follow: bool) -> None:
        jars = ",".join(map(str, connector_jars().glob("*.jar")))
        command = [sys.executable, "-m", "minibroker", "pipeline", "ingest", "--from", bootstrap]
        command += ["--into", str(into), "--master", "local[2]", "--conf", f"spark.jars={jars}"]
        command += ["--conf", "spark.sql.shuffle.partitions=2"]
        self.process = subprocess.Popen(
            [*command, *(["--follow"] if follow else [])],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def kill(self) -> None:
        family = tree(self.process.pid)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        wait_until(lambda: not [pid for pid in family if is_running(pid)], "the job to be gone")


class Stage:
    """A broker that comes back where it was, with its data, and the job beside it."""

    def __init__(self, folder: Path) -> None:
        self._listener = f"PLAINTEXT://127.0.0.1:{free_port()}"
        self._data = folder / "data"
        self._output = (folder / "job.log").open("w+b")
        self.table = folder / "activity"
        self.broker = self._start()
        self.job: Job | None = None

    def _start(self) -> RunningBroker:
        return start_minibroker(data_dir=self._data, listener=self._listener)

    def begin_job(self, *, follow: bool) -> Job:
        self.job = Job(self.broker.bootstrap_servers, self.table, self._output, follow=follow)
        return self.job

    def kill_broker(self) -> None:
        family = tree(self.broker.pid)
        for pid in family:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not [pid for pid in family if is_running(pid)], "the broker to be gone")
        self.broker.forget()
        self.broker = self._start()

    def changes(self, moment: str) -> Changes:
        """When which of a moment's paths was changed last; a killed job may have left them."""
        found = set()
        for path in self.table.glob(moment):
            with suppress(FileNotFoundError):
                found.add((path, path.stat().st_mtime_ns))
        return found

    def printed(self) -> str:
        return os.pread(self._output.fileno(), 1 << 20, 0).decode(errors="replace")

    def end(self) -> None:
        if self.job is not None:
            self.job.kill()
        self.broker.stop()
        self.broker.forget()
        self._output.close()


@pytest.fixture
def stage(memory_folder: Path, fresh: Callable[[str], str]) -> Iterator[Stage]:
    try:
        connector_jars()
    except ToolchainMissing as missing:
        without_toolchain(missing)
    folder = memory_folder / fresh("ingest")
    folder.mkdir()
    made = Stage(folder)
    yield made
    made.end()


def keys(table: Path) -> list[tuple[int, int]]:
    """(sequence, how often) of every event in the table."""
    query = f"select sequence, count(*) from '{table}/*/*/*.parquet' group by all order by all"
    return duckdb.execute(query).fetchall()


def test_each_event_is_there_once_whatever_is_killed(stage: Stage) -> None:
    chance = random.Random(SEED)
    admin = AdminClient({"bootstrap.servers": stage.broker.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result()
    told = Told(stage.broker.bootstrap_servers)
    told.start()
    ended_by_itself = 0
    for number in range(JOB_KILLS):
        job = stage.begin_job(follow=True)
        moment = MOMENTS[number % len(MOMENTS)]
        before = stage.changes(moment)

        def has_come(job: Job = job, moment: str = moment, before: Changes = before) -> bool:
            return job.process.poll() is not None or bool(stage.changes(moment) - before)

        if number % 2:
            stage.kill_broker()
        wait_until(has_come, f"{moment} to change", within_s=300, pause_s=0.002)
        ended_by_itself += job.process.poll() is not None
        wait_until(lambda: chance.random() < 0.05, "chance", pause_s=0.005)
        if number % 2 == 0 and chance.random() < 0.5:
            stage.kill_broker()
        job.kill()
    told.finish()
    last = stage.begin_job(follow=False)
    assert last.process.wait(300) == 0, stage.printed()[-4000:]
    assert keys(stage.table) == [(sequence, 1) for sequence in range(told.count)]
    aside = duckdb.execute(f"select count(*) from '{stage.table}-quarantine/*.parquet'").fetchall()
    assert aside == [(told.junk,)]
    assert ended_by_itself < JOB_KILLS, stage.printed()[-4000:]
    print(f"killed the job {JOB_KILLS} times with {told.count} events")
