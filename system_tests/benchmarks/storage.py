"""Cost of the log's operations: ``python -m system_tests.benchmarks.storage``.

Prints the median over several runs of the time of one call, in microseconds, in memory-backed
storage if the machine has it (``--folder`` sets another). Only the storage package and the record
batches run here: no loop, no sockets, one process.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.log import Log
from minibroker.broker.log.paths import rename_directory
from minibroker_protocol.records import Record, build_batch, iter_batches, verify_crc

NOW_MS = 1_700_000_000_000
RUNS = 7
SMALL_LOG_BATCHES = 20_000
BIG_LOG_BATCHES = 64

HUNDRED_BYTES = build_batch([Record(timestamp=NOW_MS, value=bytes(100))])
SIXTEEN_KB = build_batch([Record(timestamp=NOW_MS, value=bytes(1000))] * 16)
MEGABYTE = build_batch([Record(timestamp=NOW_MS, value=bytes(1000))] * 1000)


@contextmanager
def scratch_log(folder: Path, segment_bytes: int = 1 << 30) -> Iterator[Log]:
    directory = tempfile.mkdtemp(prefix="log-benchmark-", dir=folder)
    log = Log.open(directory, "t", 0, LogConfig(segment_bytes=segment_bytes), now_ms=NOW_MS)
    try:
        yield log
    finally:
        log.abandon()
        shutil.rmtree(directory)


def per_call_us(call: Callable[[int], object], times: int) -> float:
    began = time.perf_counter()
    for number in range(times):
        call(number)
    return (time.perf_counter() - began) / times * 1e6


def appending(folder: Path, batch: bytes, times: int) -> float:
    request = memoryview(bytearray(batch))
    with scratch_log(folder) as log:
        return per_call_us(lambda _: log.append(request, now_ms=NOW_MS), times)


def filled(log: Log, batch: bytes, times: int) -> Log:
    for _ in range(times):
        log.append(batch, now_ms=NOW_MS)
    return log


def reading(folder: Path, offset: Callable[[Log, int], int], segment_bytes: int = 1 << 30) -> float:
    with scratch_log(folder, segment_bytes) as log:
        filled(log, HUNDRED_BYTES, SMALL_LOG_BATCHES)
        return per_call_us(lambda number: log.read(offset(log, number), 1 << 20), 2000)


def newest(log: Log, number: int) -> int:
    return log.log_end_offset - 1


def anywhere(log: Log, number: int) -> int:
    return number * 7919 % (SMALL_LOG_BATCHES // 2)


def finding_times(folder: Path) -> float:
    with scratch_log(folder) as log:
        for number in range(SMALL_LOG_BATCHES):
            record = Record(timestamp=NOW_MS + number, value=bytes(100))
            log.append(build_batch([record]), now_ms=NOW_MS)
        return per_call_us(lambda n: log.offset_for_time(NOW_MS + anywhere(log, n)), 2000)


def opening(folder: Path, *, clean: bool, batch: bytes, times: int) -> float:
    with scratch_log(folder) as log:
        filled(log, batch, times)
        if clean:
            log.close(now_ms=NOW_MS)
        parent = Path(log.directory).parent
        log.abandon()
        began = time.perf_counter()
        again = Log.open(parent, "t", 0, LogConfig(), now_ms=NOW_MS)
        took = (time.perf_counter() - began) * 1e6
        again.abandon()
        return took


def creating_and_deleting(folder: Path) -> float:
    directory = Path(tempfile.mkdtemp(prefix="log-benchmark-", dir=folder))
    try:
        config = LogConfig()

        def create_and_delete(number: int) -> None:
            log = Log.open(directory, "t", number, config, now_ms=NOW_MS, topic_id=bytes(16))
            log.abandon()
            rename_directory(log.directory)

        return per_call_us(create_and_delete, 200)
    finally:
        shutil.rmtree(directory)


def walking() -> float:
    chunk = MEGABYTE + HUNDRED_BYTES * 5000
    return per_call_us(lambda _: sum(1 for _ in iter_batches(chunk)), 20) / 5001


def benchmarks(folder: Path) -> dict[str, Callable[[], float]]:
    many = SMALL_LOG_BATCHES
    return {
        "append, 100-byte record": lambda: appending(folder, HUNDRED_BYTES, 5000),
        "append, 16 records of 1 kB": lambda: appending(folder, SIXTEEN_KB, 2000),
        "append, 1 MB batch": lambda: appending(folder, MEGABYTE, 100),
        "  of which checksum of 1 MB": lambda: per_call_us(lambda _: verify_crc(MEGABYTE), 200),
        "read, newest batch": lambda: reading(folder, newest),
        "read, anywhere in the growing segment": lambda: reading(folder, anywhere),
        "read, anywhere in 20 sealed ones": lambda: reading(
            folder, anywhere, segment_bytes=many * len(HUNDRED_BYTES) // 20
        ),
        "offset for a time": lambda: finding_times(folder),
        "parse a batch header": walking,
        "create and delete a partition": lambda: creating_and_deleting(folder),
        "open after a close, 20,000 batches": lambda: opening(
            folder, clean=True, batch=HUNDRED_BYTES, times=many
        ),
        "open after a kill, 20,000 batches": lambda: opening(
            folder, clean=False, batch=HUNDRED_BYTES, times=many
        ),
        "open after a kill, 64 MB of 1 MB batches": lambda: opening(
            folder, clean=False, batch=MEGABYTE, times=BIG_LOG_BATCHES
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What the log's operations cost.")
    memory = Path("/dev/shm")
    default = memory if memory.is_dir() else Path(tempfile.gettempdir())
    parser.add_argument("--folder", type=Path, default=default)
    parser.add_argument("--runs", type=int, default=RUNS)
    options = parser.parse_args()
    print(f"median of {options.runs} runs, microseconds a call, in {options.folder}")
    for name, run in benchmarks(options.folder).items():
        print(f"{statistics.median(run() for _ in range(options.runs)):12.1f}  {name}")


if __name__ == "__main__":
    main()
