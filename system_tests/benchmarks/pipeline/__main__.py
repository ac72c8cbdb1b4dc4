"""``python -m system_tests.benchmarks.pipeline``: cost of the pipeline's jobs for many events.

Owns the order of measures, their targets and the printed table; each measure runs in a separate
process, whose memory, including its child processes, is sampled. Invariant: a measure that fails or
takes too long leaves a dash and a note, and the other figures remain.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from system_tests.benchmarks.measures import machine_busy_share
from system_tests.benchmarks.pipeline.measures import BYTES, EVERYTHING
from system_tests.benchmarks.pipeline.memory import Peak
from system_tests.benchmarks.report import machine
from system_tests.harness.jars import CACHE

EVENTS: Final = 30_000_000
SMALL_SHARE: Final = 10
"""The growth is measured from so many times fewer events."""
RUNS: Final = 3
PATIENCE_S: Final = 600
MILLION: Final = 1_000_000


class Row(NamedTuple):
    """A measure, and the events a second and core that it should reach."""

    what: str
    measure: str
    target: float | None = None
    cores: int = 1
    quotas: str = EVERYTHING
    small: bool = False
    """Of fewer events."""
    runs: int = RUNS


ROWS: Final = (
    Row("kernel: quotas of bytes", "kernel", 10, quotas=BYTES),
    Row("kernel: and of request time", "kernel", 10),
    Row("replay of bucketed files", "replay", 3, small=True),
    Row("replay of bucketed files", "replay", 3),
    Row("replay of bucketed files", "replay", 3, cores=2),
    Row("replay after a shuffle", "replay_shuffled", small=True, runs=2),
    Row("replay after a shuffle", "replay_shuffled", runs=1),
    Row("DuckDB's sort, same kernel", "duckdb_replay", small=True),
    Row("DuckDB's sort, same kernel", "duckdb_replay", runs=1),
    Row("DuckDB's sort, same kernel", "duckdb_replay", cores=2, runs=1),
    Row("ingest of raw activity", "ingest", 0.5, small=True),
    Row("ingest of raw activity", "ingest", 0.5, runs=1),
    Row("ingest of raw activity", "ingest", 0.5, cores=2, small=True),
    Row("usage by minute", "usage", small=True, runs=2),
    Row("usage by minute", "usage", runs=1),
    Row("DuckDB's usage by minute", "duckdb_usage", small=True, runs=2),
    Row("recommended quotas", "recommend", small=True, runs=2),
    Row("recommended quotas", "recommend", runs=1),
    Row("DuckDB's rates for quotas", "duckdb_rates", small=True, runs=2),
    Row("report", "report", small=True, runs=2),
    Row("report", "report", runs=1),
    Row("watch, as one batch", "watch", small=True, runs=2),
    Row("watch, as one batch", "watch", runs=1),
    Row("compaction of two files each", "compact", small=True, runs=2),
    Row("compaction of two files each", "compact", runs=1),
)


class Figures(NamedTuple):
    """What came of a row."""

    row: Row
    events: int
    seconds: list[float]
    """Of each run, the first one first."""
    cpu_s: float
    """Of the last run, of all processes that took part."""
    peak_mb: float

    @property
    def warm_s(self) -> float:
        """Of the runs after the first, if there were any."""
        return statistics.median(self.seconds[1:] or self.seconds)

    @property
    def rate(self) -> float:
        """Million events a second and core."""
        return self.events / self.warm_s / self.row.cores / MILLION


class Folders(NamedTuple):
    """Where the generated events are."""

    root: Path

    @property
    def scratch(self) -> Path:
        return self.root / "scratch"

    def table(self, row: Row) -> Path:
        return self.root / ("small" if row.small else "large")

    def topic(self, row: Row) -> Path:
        return self.root / ("topic-small" if row.small else "topic-large")


def generate(folders: Folders, events: int) -> Iterator[str]:
    """Generate what does not exist yet; yield what it cost."""
    wanted = {
        "small": ("--table", events // SMALL_SHARE),
        "large": ("--table", events),
        "topic-small": ("--topic", events // SMALL_SHARE),
        "topic-large": ("--topic", events),
    }
    for name, (option, count) in wanted.items():
        folder = folders.root / name
        if folder.exists():
            continue
        half_made = folders.root / f"{name}.half-made"
        shutil.rmtree(half_made, ignore_errors=True)
        made = _python("generate", option, half_made, "--events", count)
        subprocess.run(made, check=True)
        half_made.rename(folder)
        yield f"{name}: {count:,} events"


def _python(module: str, *words: object) -> list[str]:
    name = f"system_tests.benchmarks.pipeline.{module}"
    return [sys.executable, "-m", name, *map(str, words)]


def measure(row: Row, folders: Folders) -> Figures | str:
    """The figures of a row, or why there are none."""
    command = _python(
        "measures", row.measure,
        "--table", folders.table(row), "--topic", folders.topic(row), "--scratch", folders.scratch,
        "--cores", row.cores, "--runs", row.runs, "--quotas", row.quotas,
    )  # fmt: skip
    with (
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
        Peak(process.pid) as peak,
    ):
        try:
            printed, errors = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return f"{row.what}, {row.cores} cores: not done after {PATIENCE_S} s"
    if process.returncode:
        last = errors.strip().splitlines()[-1:] or ["no word"]
        return f"{row.what}, {row.cores} cores: {last[0]}"
    runs = json.loads(printed.splitlines()[-1])
    return Figures(row, runs[0][1], [seconds for seconds, *_ in runs], runs[-1][2], peak.mb)


def line(figures: Figures) -> list[str]:
    """A row of the table."""
    row = figures.row
    verdict = (
        "" if row.target is None else "reached" if figures.rate >= row.target else "NOT REACHED"
    )
    return [
        row.what,
        f"{figures.events / MILLION:g}",
        str(row.cores),
        f"{figures.seconds[0]:.1f}",
        f"{figures.warm_s:.1f}" if len(figures.seconds) > 1 else "-",
        f"{figures.rate:.2f}",
        "" if row.target is None else f">= {row.target:g}",
        verdict,
        f"{figures.events / figures.cpu_s / MILLION:.2f}",
        f"{figures.peak_mb:,.0f}",
    ]


HEAD: Final = (
    "", "M events", "cores", "first s", "warm s", "M/s a core", "target", "", "M/CPU s", "peak MB"
)  # fmt: skip


def table(lines: Sequence[Sequence[str]]) -> str:
    """Aligned, the first column to the left."""
    widths = [max(len(each[column]) for each in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(each, widths, strict=True))
        ).rstrip()
        for each in lines
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m system_tests.benchmarks.pipeline", description=__doc__
    )
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument(
        "--folder",
        type=Path,
        help="where generated events are kept for the next time (default: .cache/pipeline-EVENTS)",
    )
    parser.add_argument("--only", nargs="+", metavar="MEASURE", help="these measures alone")
    options = parser.parse_args()
    folders = Folders(options.folder or CACHE / f"pipeline-{options.events}")
    folders.root.mkdir(parents=True, exist_ok=True)
    for made in generate(folders, options.events):
        print(f"generated {made}", file=sys.stderr)
    busy = machine_busy_share()
    began = time.monotonic()
    found, notes = [], [f"other programs kept the machine {busy:.0%} busy"] if busy > 0.05 else []
    for row in ROWS:
        if options.only and row.measure not in options.only:
            continue
        print(f"  {row.what}, {row.cores} cores …", file=sys.stderr, flush=True)
        figures = measure(row, folders)
        notes.append(figures) if isinstance(figures, str) else found.append(figures)
    here = machine()
    print(f"{here['cpu']}, {here['cores']} cores, Linux {here['kernel']}, Python {here['python']}")
    print(f"warm is the median of the runs after a process's first; {options.events:,} events\n")
    print(table([HEAD, *map(line, found)]))
    for note in notes:
        print(f"note: {note}")
    print(f"took {time.monotonic() - began:.0f} s beside generating; events are in {folders.root}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
