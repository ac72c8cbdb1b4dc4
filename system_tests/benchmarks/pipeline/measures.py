"""Cost of each job of the pipeline for generated events, one measure per process.

``python -m system_tests.benchmarks.pipeline.measures NAME --table DIR …`` runs one of them and
prints its figures as a line of JSON. Owns how each job is called. It must never know targets or
other measures. Invariant: the first run of a process, which compiles and loads, is separated from
later ones, and Spark's start from both.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from system_tests.benchmarks.pipeline.memory import tree_cpu_s

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from minibroker.pipeline.table import Table
    from minibroker.pipeline.whatif.proposal import Proposal

KERNEL_EVENTS: Final = 5_000_000
"""Events of the kernel, all in memory."""
BATCH: Final = 1_000_000
"""Events that DuckDB hands over at once."""
EVERY_S: Final = 60
WATCHED_S: Final = 10

BYTES: Final = "producer_byte_rate=100000,consumer_byte_rate=100000"
EVERYTHING: Final = f"{BYTES},request_percentage=1"


class Task(NamedTuple):
    """A measure, and the location of its input."""

    table: Path
    topic: Path
    scratch: Path
    cores: int
    quotas: str

    def proposal(self) -> Proposal:
        """Every client of every user has quotas of its own, so that all requests are looked at."""
        from minibroker.broker.settings import Settings
        from minibroker.pipeline.whatif.proposal import proposal_of

        line = f"--alter --user-defaults --client-defaults --add-config {self.quotas}"
        return proposal_of(line, "all", Settings.from_sources())


class Took(NamedTuple):
    """One run."""

    seconds: float
    events: int
    cpu_s: float
    """Of all processes that took part."""


Runs = Generator[Took, None, None]
Measure = Callable[[Task], Runs]
"""Yields one run after the other, as long as the caller needs more."""


def timed(run: Callable[[], int]) -> Took:
    """The time of a run that says how many events it was about."""
    before_s, began = tree_cpu_s(os.getpid()), time.perf_counter()
    events = run()
    took_s = time.perf_counter() - began
    return Took(took_s, events, tree_cpu_s(os.getpid()) - before_s)


@contextmanager
def spark_of(task: Task) -> Iterator[SparkSession]:
    from minibroker.pipeline.session import session

    with session("benchmark", master=f"local[{task.cores}]") as spark:
        spark.range(1).count()
        yield spark


def nothing(frame: DataFrame) -> None:
    """Computes all of it and keeps none."""
    frame.write.format("noop").mode("overwrite").save()


def events_of(table: Path) -> int:
    """How many there are, from the files' ends."""
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(file).num_rows for file in table.rglob("*.parquet"))


# What-if --------------------------------------------------------------------------------------


def kernel(task: Task) -> Runs:
    """Run the compiled loop over requests alone, which are in memory and in order."""
    import numpy as np

    from minibroker.lab.activity.events import ActivityKind
    from minibroker.pipeline.whatif.columns import (
        KINDS,
        REQUEST,
        Senders,
        more_pending,
        new_answers,
        new_minutes,
        new_pending,
        new_tally,
        of_kind,
        requests_of,
    )
    from minibroker.pipeline.whatif.counters import new_counters
    from minibroker.pipeline.whatif.open_loop import open_loop, walk_times
    from minibroker.pipeline.whatif.proposal import Counting, Shares

    counting, senders = Counting(), Senders()
    parts, left = [], KERNEL_EVENTS
    for events in _read(task):
        seen = of_kind(events, ActivityKind.REQUEST).slice(0, left)
        left -= len(seen)
        parts.append(requests_of(seen, senders, delays=False))
        if not left:
            break
    shares = Shares(task.proposal(), counting)
    for sender in senders.all:
        shares.add(sender)
    sharing = shares.sharing()
    timed_too = bool((sharing.counter[:, REQUEST] >= 0).any())
    most = max(len(part.ms) for part in parts)

    def run() -> int:
        words = new_counters(shares.counters, counting.quota_window_num)
        pending = more_pending(new_pending(), 2 * most, shares.counters)
        tally, answers = new_tally(len(senders.all)), new_answers(0)
        minutes = new_minutes(most + len(senders.all) * len(KINDS))
        for part in parts:
            minutes[0, 0] = 0
            terms, worked = counting.terms(closed=False), np.zeros(len(part.ms), np.int64)
            if timed_too:
                walk_times(part, sharing, words, pending, tally, answers, terms, worked)
            open_loop(part, sharing, words, pending, tally, minutes, answers, terms, worked)
        return sum(len(part.ms) for part in parts)

    while True:
        yield timed(run)


def _read(task: Task) -> Iterator[pa.Table]:
    """The table as a replay reads it, bucket by bucket."""
    from minibroker.pipeline.activity_table import buckets_of, read
    from minibroker.pipeline.whatif.job import fields_wanted

    fields = fields_wanted([task.proposal()])
    for bucket in buckets_of(str(task.table)):
        for files in bucket.hours:
            yield from read(files, fields, by_group=True)


def replay(task: Task) -> Runs:
    """The job as the command runs it, on files that are in buckets and sorted."""
    from minibroker.pipeline.activity_table import buckets_of
    from minibroker.pipeline.whatif import job
    from minibroker.pipeline.whatif.proposal import Counting

    events = events_of(task.table)
    with spark_of(task) as spark:

        def run() -> int:
            buckets = buckets_of(str(task.table))
            nothing(job.whatif_of_buckets(spark, buckets, [task.proposal()], Counting()))
            return events

        while True:
            yield timed(run)


def replay_shuffled(task: Task) -> Runs:
    """The job on a table that isn't in files of this machine, or not in buckets."""
    from minibroker.pipeline.activity_table import read_activity
    from minibroker.pipeline.whatif import job
    from minibroker.pipeline.whatif.proposal import Counting

    events = events_of(task.table)
    with spark_of(task) as spark:

        def run() -> int:
            activity = read_activity(spark, str(task.table))
            nothing(job.whatif(activity, [task.proposal()], Counting()))
            return events

        while True:
            yield timed(run)


def duckdb_replay(task: Task) -> Runs:
    """DuckDB sorts the same files, and the same kernel replays its output."""
    import duckdb
    import pyarrow as pa

    from minibroker.pipeline.whatif.job import fields_wanted
    from minibroker.pipeline.whatif.proposal import Counting
    from minibroker.pipeline.whatif.replay import Replay

    wanted = ", ".join(dict.fromkeys(f.split(".")[0] for f in fields_wanted([task.proposal()])))
    events = events_of(task.table)

    def run() -> int:
        replayed = Replay([task.proposal()], Counting())
        with duckdb.connect() as database:
            database.execute(f"set threads = {task.cores}")
            database.execute(f"set temp_directory = '{task.scratch}'")
            rows = database.sql(
                f"select {wanted} from read_parquet('{task.table}/*/*/*.parquet')"
                " order by broker, user, client_id, time_us, sequence"
            )
            for batch in rows.to_arrow_reader(BATCH):
                replayed.feed(pa.Table.from_batches([batch]))
                for _ in replayed.finished_rows():
                    pass
        for _ in replayed.end():
            pass
        return events

    while True:
        yield timed(run)


# Ingest and aggregations ---------------------------------------------------------------------


def ingest(task: Task) -> Runs:
    """The job on a data directory, into a new table each time."""
    from minibroker.pipeline.ingest import ingest_directory
    from minibroker.pipeline.table import Table

    with spark_of(task) as spark:
        for number in itertools.count():
            table = task.scratch / f"table-{number}"

            def run(into: Path = table) -> int:
                counts = ingest_directory(Table(spark, str(into)), str(task.topic), lambda _: None)
                return counts.events

            yield timed(run)
            shutil.rmtree(table)


def usage(task: Task) -> Runs:
    """The usage table by minute as the command makes it, computed and thrown away."""
    from minibroker.pipeline.commands.usage import aggregate_usage

    events = events_of(task.table)
    with spark_of(task) as spark:

        def run() -> int:
            nothing(aggregate_usage(spark, str(task.table), EVERY_S))
            return events

        while True:
            yield timed(run)


def recommend(task: Task) -> Runs:
    """Recommend quotas for users, as the command does."""
    from minibroker.pipeline.activity_table import read_activity, scan_of
    from minibroker.pipeline.quota_amounts import USER
    from minibroker.pipeline.recommend import Policy, observed
    from minibroker.pipeline.recommend import recommend as decide
    from minibroker.pipeline.report.aggregate import coverage

    policy = Policy()
    events = events_of(task.table)
    with spark_of(task) as spark:

        def run() -> int:
            activity = read_activity(spark, str(task.table))
            count = coverage(activity, None).events
            scan = scan_of(activity, str(task.table))
            decide(observed(scan, USER, policy, count), USER, policy)
            return events

        while True:
            yield timed(run)


def duckdb_rates(task: Task) -> Runs:
    """Compute the rates behind the recommended quotas by one query of DuckDB."""
    from tests.pipeline.duckdb_queries import USER_RATES

    yield from _by_duckdb(task, USER_RATES, {"share": 0.99})


def report(task: Task) -> Runs:
    """The figures of the report, and its page."""
    from minibroker.pipeline.activity_table import read_activity
    from minibroker.pipeline.report.aggregate import figures
    from minibroker.pipeline.report.page import page

    events = events_of(task.table)
    with spark_of(task) as spark:

        def run() -> int:
            page(figures(read_activity(spark, str(task.table)), str(task.table)))
            return events

        while True:
            yield timed(run)


def watch(task: Task) -> Runs:
    """Everything that a watch computes from the events, as one batch."""
    from minibroker.pipeline.activity_table import read_activity
    from minibroker.pipeline.watch.rules import Rules, WatchLimits
    from minibroker.pipeline.watch.stream import by_interval, intervals

    events = events_of(task.table)
    with spark_of(task) as spark:

        def run() -> int:
            limits = WatchLimits()
            rules = Rules(WATCHED_S, limits)
            activity = read_activity(spark, str(task.table))
            for interval in intervals(by_interval(activity, WATCHED_S, 0), limits):
                rules.evaluate(interval)
            return events

        while True:
            yield timed(run)


def compact(task: Task) -> Runs:
    """Merge the two files that each hour and bucket has."""
    from minibroker.pipeline.table import Table

    with spark_of(task) as spark:
        for number in itertools.count():
            path = task.scratch / f"compacted-{number}"
            shutil.copytree(task.table, path)
            for file in list(path.glob("hour=*/bucket=*/*.parquet")):
                shutil.copy(file, file.with_name(f"second-{file.name}"))
            table = Table(spark, str(path))
            yield timed(partial(_compacted, table, events_of(path)))
            shutil.rmtree(path)


def _compacted(table: Table, events: int) -> int:
    table.compact(table.places())
    return events


def duckdb_usage(task: Task) -> Runs:
    """Aggregate the same table by one query of DuckDB."""
    from tests.pipeline.duckdb_queries import USAGE

    yield from _by_duckdb(task, USAGE, {"every": EVERY_S * 1_000_000})


def _by_duckdb(task: Task, query: str, parameters: dict[str, float]) -> Runs:
    import duckdb

    given = {**parameters, "path": f"{task.table}/*/*/*.parquet"}
    events = events_of(task.table)

    def run() -> int:
        with duckdb.connect() as database:
            database.execute(f"set threads = {task.cores}")
            database.execute(f"set temp_directory = '{task.scratch}'")
            database.execute(query, given).to_arrow_table()
        return events

    while True:
        yield timed(run)


MEASURES: Final[dict[str, Measure]] = {
    "kernel": kernel,
    "replay": replay,
    "replay_shuffled": replay_shuffled,
    "duckdb_replay": duckdb_replay,
    "ingest": ingest,
    "usage": usage,
    "duckdb_usage": duckdb_usage,
    "recommend": recommend,
    "duckdb_rates": duckdb_rates,
    "report": report,
    "watch": watch,
    "compact": compact,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=MEASURES)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--topic", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--quotas", default=EVERYTHING)
    options: Any = parser.parse_args()
    shutil.rmtree(options.scratch, ignore_errors=True)  # Left by a measure that was stopped.
    options.scratch.mkdir(parents=True)
    task = Task(options.table, options.topic, options.scratch, options.cores, options.quotas)
    runs = MEASURES[options.name](task)
    print(json.dumps([next(runs) for _ in range(options.runs)]))
    runs.close()
    shutil.rmtree(options.scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
