"""Activity of brokers that never ran, as skewed as that of real ones: a table, a topic, quotas.

``python -m system_tests.benchmarks.pipeline.generate --table DIR --events 5000000`` writes the
activity table as ingest leaves it, ``--topic DIR`` a data directory with the topic's segments.
It must never need a broker or Spark. Invariant: the same workload gives the same events, every
event has the fields of its kind and no other, and memory is that of an hour of events, not of all.
"""

from __future__ import annotations

import argparse
import io
import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.log import Log
from minibroker.lab.activity.events import (
    CHECK_FIELDS,
    FIELDS,
    TOPIC,
    VERSION,
    ActivityKind,
    ActivityType,
    ConnectionStep,
)
from minibroker.pipeline.decoding import OBJECT_SCHEMA, flattened
from minibroker.pipeline.event_files import bucket_of
from minibroker_protocol.compression import Compression
from minibroker_protocol.records import Record, build_batch
from system_tests.benchmarks.pipeline import clients
from system_tests.benchmarks.pipeline.clients import (
    ACCEPTED,
    CLOSED,
    CREATE,
    PRODUCE,
    REQUESTED,
    GeneratedEvents,
)
from system_tests.benchmarks.pipeline.workload import (
    HOUR_US,
    START_US,
    Population,
    Workload,
    encoded,
    initial_state,
    population,
    quota_lines,
)

PARTITIONS: Final = 4
RECORDED: Final = 1_000
"""Events of a record: what a recorder puts into one if it is busy."""
SEGMENT_BYTES: Final = 64 << 20
WRITERS: Final = 2
PIECE: Final = 50_000
FAILS_ONE_IN: Final = 500
CLOSED_BECAUSE: Final = "client_closed"

_LEAVES: Final = [
    (f"{field.name}.{inner.name}" if inner is not field else field.name, inner.type)
    for field in FIELDS
    for inner in (CHECK_FIELDS if field.type is ActivityType.CHECK else [field])
]
_WORDS: Final = [name for name, kind in _LEAVES if kind in (ActivityType.TEXT, ActivityType.DOUBLE)]
"""Columns of texts, which repeat, and of rates, most of which are one."""
_NUMBERS: Final = {
    name: "DELTA_BINARY_PACKED"
    for name, kind in _LEAVES
    if kind in (ActivityType.INT, ActivityType.LONG)
}
"""Encodings as in ingested files: differences of sorted events are smaller than the values."""
_ERRORS: Final = np.array([3, 6, 7, 16])
_VERSIONS: Final = {0: 11, 1: 13, 3: 12, 8: 9, 12: 4, 19: 7}

Column = npt.NDArray[Any]


class Hour(NamedTuple):
    """An hour of events, and the bucket of each."""

    name: str
    events: pa.Table
    buckets: Column


def hours(workload: Workload, *, sort: bool) -> Iterator[Hour]:
    """Yield all events, hour by hour: in the order of the table's files, or in time order."""
    found = population(workload)
    state = initial_state(workload, found.traits)
    names = _Names(found, workload)
    left = workload.events
    step_us = min(HOUR_US, workload.lasts_us)
    per_step = workload.events * step_us // workload.lasts_us
    expected = int(per_step * (1 + clients.WAVE))

    def step(number: int) -> GeneratedEvents:
        until_us = START_US + number * step_us
        return clients.simulate(found.traits, state, until_us, expected, workload.seed + number)

    with ThreadPoolExecutor(1) as pool:
        next_hour = pool.submit(step, 1)
        for number in itertools.count(2):
            seen = next_hour.result()
            order = np.argsort(seen.time_us, kind="stable")[:left]
            left -= len(order)
            if left:  # The next hour is simulated while this one is written.
                next_hour = pool.submit(step, number)
            seen = GeneratedEvents._make(column[order] for column in seen)
            yield names.hour(seen, workload.seed + number, sort=sort)
            if not left:
                return


class _Names:
    """Names of groups and connections in events, by number."""

    def __init__(self, found: Population, workload: Workload) -> None:
        who = found.entities
        self.users = pa.array([each.user for each in who])
        self.encoded = pa.array([encoded(each) for each in who])
        self.client_ids = pa.array([each.client for each in who])
        self.ips = pa.array(found.ips)
        self.bounds = found.traits.bounds
        self.connections = len(found.ips)
        self.entities, self.brokers = workload.entities, workload.brokers
        self.sequences = np.zeros(workload.brokers, np.int64)
        places = sorted(
            range(len(who)), key=lambda at: (who[at].user.encode(), who[at].client.encode())
        )
        self.rank = np.empty(len(places), np.int64)
        self.rank[places] = np.arange(1, len(places) + 1)
        self.bucket = np.array([bucket_of(*each) for each in who])
        self.ip_bucket = np.array([bucket_of(ip) for ip in found.ips])

    def hour(self, seen: GeneratedEvents, seed: int, *, sort: bool) -> Hour:
        begins_us = int(seen.time_us[0])
        sequence = np.empty(len(seen.group), np.int64)
        for number in range(self.brokers):
            of_it = np.flatnonzero(seen.group // self.entities == number)
            sequence[of_it] = np.arange(len(of_it)) + self.sequences[number] + 1
            self.sequences[number] += len(of_it)
        count = len(sequence)
        queued_ns = np.random.default_rng(seed).lognormal(10.5, 1.2, count).astype(np.int64)
        is_request, entity = seen.kind == REQUESTED, seen.group % self.entities
        buckets = np.where(is_request, self.bucket[entity], self.ip_bucket[seen.connection])
        if sort:
            rank = np.where(is_request, self.rank[entity], 0)
            order = np.lexsort((sequence, seen.time_us, rank, buckets))
            seen = GeneratedEvents._make(column[order] for column in seen)
            buckets, sequence, queued_ns = buckets[order], sequence[order], queued_ns[order]
        columns = self._columns(seen, sequence, queued_ns)
        arrays = [
            columns.get(name, pa.nulls(count, kind))
            for name, kind in zip(OBJECT_SCHEMA.names, OBJECT_SCHEMA.types, strict=True)
        ]
        name = time.strftime("%Y-%m-%d-%H", time.gmtime(begins_us // 1_000_000))
        return Hour(name, pa.table(arrays, names=OBJECT_SCHEMA.names), buckets)

    def _columns(
        self, seen: GeneratedEvents, sequence: Column, queued_ns: Column
    ) -> dict[str, pa.Array]:
        count = len(sequence)
        is_request = seen.kind == REQUESTED
        made = {
            "version": np.full(count, VERSION),
            "broker": seen.group // self.entities + 1,
            "started_us": np.full(count, START_US),
            "sequence": sequence,
            "time_us": seen.time_us,
            "clock_ms": seen.time_us // 1000,
            "sample": np.ones(count),
            "connection": seen.connection + seen.turn * self.connections,
        }
        io_ns = seen.checked_ns * 7 // 10
        late_us = seen.time_us + seen.late_ns // 1000
        failed = queued_ns % FAILS_ONE_IN == 0
        of_requests = {
            "api_key": seen.api,
            "api_version": np.array([_VERSIONS.get(api, 0) for api in range(64)])[seen.api],
            "request_bytes": seen.request_bytes,
            "response_bytes": seen.response_bytes,
            "exempt": np.zeros(count, bool),
            "queue_ns": queued_ns,
            "network_ns": seen.checked_ns - io_ns + seen.late_ns,
            "io_ns": io_ns,
            "total_ns": seen.total_ns + queued_ns,
            "checked_ns": seen.checked_ns,
            "late_ns": seen.late_ns,
            "late_clock_ms": late_us // 1000,
            "ordinal": seen.time_us,
            "late_ordinal": late_us,
            "throttle_ms": seen.throttled_ms,
            "error_code": np.where(failed, _ERRORS[sequence % len(_ERRORS)], 0),
        }
        columns = {name: self._array(name, values) for name, values in made.items()}
        for name, values in of_requests.items():
            columns[name] = self._array(name, values, ~is_request)
        columns["records"] = self._array(
            "records", seen.request_bytes // 300 + 1, ~is_request | (seen.api != PRODUCE)
        )
        creates = is_request & (seen.api == CREATE)
        columns["mutations"] = self._array("mutations", sequence % 12 + 1, ~creates)
        columns["mutations_refused"] = self._array("mutations_refused", 0 * sequence, ~creates)
        columns["strict"] = self._array("strict", np.ones(count, bool), ~creates)
        columns.update(self._texts(seen, is_request))
        for rate, name in enumerate(("produce", "fetch", "request")):
            columns[name] = self._check(seen, rate)
        return columns

    def _array(self, name: str, values: Column, mask: Column | None = None) -> pa.Array:
        kind = OBJECT_SCHEMA.field(name).type if name in OBJECT_SCHEMA.names else pa.int64()
        return pa.array(values, mask=mask).cast(kind)

    def _texts(self, seen: GeneratedEvents, is_request: Column) -> dict[str, pa.Array]:
        entity = seen.group % self.entities
        who = pa.array(entity, mask=~is_request)
        happened = pa.array(seen.kind - ACCEPTED, mask=is_request)
        zeros = np.zeros(len(entity), np.int64)
        kinds = pa.array([str(ActivityKind.REQUEST), str(ActivityKind.CONNECTION)])
        return {
            "kind": _taken(kinds, (~is_request).astype(np.int64)),
            "listener": _taken(pa.array(["PLAINTEXT"]), zeros),
            "ip": _taken(self.ips, seen.connection),
            "user": _taken(self.users, who),
            "client_id": _taken(self.client_ids, who),
            "happened": _taken(
                pa.array([str(ConnectionStep.ACCEPTED), str(ConnectionStep.CLOSED)]), happened
            ),
            "reason": _taken(pa.array([CLOSED_BECAUSE]), pa.array(zeros, mask=seen.kind != CLOSED)),
        }

    def _check(self, seen: GeneratedEvents, rate: int) -> pa.Array:
        entity = seen.group % self.entities
        rates = seen.rates[:, rate]
        unchecked = np.isnan(rates)
        bounds = self.bounds[seen.group, rate]
        fields = {
            "user": _taken(self.encoded, entity),
            "client_id": _taken(self.client_ids, entity),
            "rate": pa.array(np.where(unchecked, 0.0, rates)),
            "bound": pa.array(bounds, mask=np.isinf(bounds)),
            "throttle_ms": pa.array(seen.throttles[:, rate].astype(np.int32)),
            "clock_ms": pa.array(seen.time_us // 1000),
        }
        return pa.StructArray.from_arrays(
            [fields[field.name] for field in CHECK_FIELDS],
            names=[field.name for field in CHECK_FIELDS],
            mask=pa.array(unchecked),
        )


def _taken(values: pa.Array, which: Any) -> pa.Array:
    """The values at these indexes, dictionary-encoded."""
    words = values.dictionary_encode()  # With distinct values, or files would get no dictionary.
    return pa.DictionaryArray.from_arrays(words.indices.take(pa.array(which)), words.dictionary)


def table(path: Path, events: int, seed: int = 1, **more: Any) -> Path:
    """Writes the activity table, a file an hour and bucket; its quotas into ``<path>.quotas``."""
    workload = Workload(events, seed, **more)
    with ThreadPoolExecutor(WRITERS) as writers:
        for hour in hours(workload, sort=True):
            begins = np.flatnonzero(np.diff(hour.buckets, prepend=-1))
            ends = np.append(begins[1:], len(hour.buckets))
            folders = [path / f"hour={hour.name}" / f"bucket={hour.buckets[at]}" for at in begins]
            slices = [hour.events.slice(*at) for at in zip(begins, ends - begins, strict=True)]
            for _ in writers.map(_write, folders, slices):
                pass
    quotas(Path(f"{path}.quotas"), workload)
    return path


def _write(folder: Path, events: pa.Table) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"part-{sum(1 for _ in folder.iterdir()):05}.parquet"
    pq.write_table(
        events, file, compression="zstd", store_schema=False,
        use_dictionary=_WORDS, column_encoding=_NUMBERS,
    )  # fmt: skip


def quotas(path: Path, workload: Workload) -> Path:
    """Writes the quotas that were in force."""
    path.write_text("\n".join(quota_lines(population(workload))) + "\n")
    return path


def topic(path: Path, events: int, seed: int = 1, **more: Any) -> Path:
    """Writes a data directory with the topic of these events in its logs."""
    now_ms = START_US // 1000
    config = LogConfig(segment_bytes=SEGMENT_BYTES, retention_ms=-1, timestamp_after_max_ms=1 << 60)
    logs = [Log.open(path, TOPIC, number, config, now_ms=now_ms) for number in range(PARTITIONS)]
    turn = itertools.cycle(logs)
    # Processes, as making batches is Python's work; new ones, as this one has threads.
    with ProcessPoolExecutor(WRITERS, multiprocessing.get_context("spawn")) as makers:
        make = makers.map if events > WRITERS * PIECE else map
        for hour in hours(Workload(events, seed, **more), sort=False):
            pieces = map(_as_message, hour.events.combine_chunks().to_batches(PIECE))
            for when_ms, batches in make(_batches, pieces):
                for batch in batches:
                    next(turn).append(batch, now_ms=when_ms)
    for log in logs:
        log.close(now_ms=now_ms)
    return path


def _as_message(piece: pa.RecordBatch) -> bytes:
    """A piece for another process; pickled it would be sent with all that it is a piece of."""
    out = io.BytesIO()
    with pa.ipc.new_stream(out, piece.schema) as stream:
        stream.write_batch(piece)
    return out.getvalue()


def _batches(message: bytes) -> tuple[int, list[bytes]]:
    """(when the first event was, in milliseconds; events as batches of records, compressed)."""
    events = pa.ipc.open_stream(message).read_all().cast(OBJECT_SCHEMA)
    times = (events["time_us"].to_numpy() // 1000).tolist()
    batches = []
    for at in range(0, len(events), RECORDED):
        some = flattened(events.slice(at, RECORDED))
        value = _as_message(some.to_batches()[0])
        record = Record(timestamp=times[at + len(some) - 1], value=value)
        batches.append(build_batch([record], compression=Compression.ZSTD))
    return times[0], batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", type=Path, metavar="DIR")
    parser.add_argument("--topic", type=Path, metavar="DIR")
    options = parser.parse_args()
    jobs: list[tuple[Path | None, Callable[..., Path]]] = [
        (options.table, table), (options.topic, topic)
    ]  # fmt: skip
    for path, write in jobs:
        if path is not None:
            began = time.perf_counter()
            write(path, options.events, options.seed)
            took = time.perf_counter() - began
            print(f"{options.events:,} events in {path}: {took:.1f} s")


if __name__ == "__main__":
    main()
