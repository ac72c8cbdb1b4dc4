"""Start and memory at rest of one or two checkouts: ``python -m system_tests.benchmarks.start``.

Measures how long ``minibroker start`` takes until it is ready, and with how much processor time;
the pytest fixture; and the memory of each process at rest. With ``--against DIR``, another checkout
takes turns with this one. Other programs change the time more than the processor time, so
``--realtime`` runs everything in the real-time scheduling class, which requires root. Invariant: no
run compiles modules, except for one of each checkout that is not counted.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from system_tests.benchmarks.measures import Figures, fixture_start, keep_bytecode
from system_tests.harness.jars import PROJECT, import_path
from system_tests.harness.processes import tree

REST_S = 6.0
"""How long a broker is left alone before its memory is measured."""
COMMAND = (
    sys.executable,
    "-m",
    "minibroker",
    "start",
    "--json",
    "--listener",
    "PLAINTEXT://127.0.0.1:0",
)


def start(checkout: Path, rest_s: float) -> Figures:
    """Start a broker, leave it alone for a while, and stop it."""
    environment = {**os.environ, "PYTHONPATH": import_path(checkout)}
    began = time.perf_counter()
    broker = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, cwd=checkout, env=environment)
    assert broker.stdout is not None
    try:
        if not broker.stdout.readline():
            raise RuntimeError(f"the broker of {checkout} did not start")
        figures = {"ready after (ms)": (time.perf_counter() - began) * 1e3}
        pids = tree(broker.pid)
        figures["CPU until ready, all processes (ms)"] = sum(map(cpu_ms, pids))
        figures["CPU until ready, supervisor (ms)"] = cpu_ms(broker.pid)
        time.sleep(rest_s)
        for pid in pids:
            for figure, size in memory(pid, broker.pid).items():
                figures[figure] = figures.get(figure, 0.0) + size
    finally:
        broker.send_signal(signal.SIGTERM)
        broker.wait(30)
        broker.stdout.close()
    return figures


def cpu_ms(pid: int) -> float:
    """Return the processor time of a process, in milliseconds; more precise than in clock ticks."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def memory(pid: int, supervisor: int) -> Figures:
    """Return what a process adds to the memory at rest, in MB."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    sizes = {
        field: int(kib) * 1024 / 1e6
        for field, kib in re.findall(r"^(\w+): +(\d+) kB$", rollup, re.MULTILINE)
    }
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    role = "supervisor" if pid == supervisor else name.removeprefix("mb-").rstrip("-0123456789")
    return {
        "memory at rest (MB)": sizes["Pss"],
        "memory at rest without files (MB)": sizes["Pss_Anon"],
        f"private memory, {role} (MB)": sizes["Private_Dirty"],
    }


def table(checkouts: list[Path], runs: dict[Path, list[Figures]]) -> str:
    """Return medians with the least and the most of all runs, a column for each checkout."""
    lines = [" | ".join(["", *map(str, checkouts)])]
    for name in dict.fromkeys(name for run in runs[checkouts[0]] for name in run):
        cells = [name]
        for checkout in checkouts:
            seen = [run[name] for run in runs[checkout] if name in run]
            middle = f"{statistics.median(seen):.1f}" if seen else "-"
            cells.append(f"{middle} ({min(seen):.1f}-{max(seen):.1f})" if seen else middle)
        lines.append(" | ".join(cells))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--runs", type=int, default=7, help="runs of each measure (default: 7)")
    parser.add_argument("--rest", type=float, default=REST_S, help="seconds at rest (default: 6)")
    parser.add_argument("--realtime", action="store_true", help="use the real-time class")
    options = parser.parse_args()
    checkouts = [PROJECT, *([options.against.resolve()] if options.against else [])]
    runs: dict[Path, list[Figures]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        keep_bytecode(Path(folder))
        if options.realtime:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        for run in range(options.runs + 1):
            for checkout in checkouts:
                figures = start(checkout, options.rest if run else 0)
                figures |= fixture_start(Path(folder), checkout)
                if run:
                    runs[checkout].append(figures)
    print(table(checkouts, runs))


if __name__ == "__main__":
    main()
