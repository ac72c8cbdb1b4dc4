"""``python -m system_tests.benchmarks``: minibroker and its peers, in one run of minutes.

Owns the order of measures: all peers run at the same time, idle except for the one that is
measured, and take turns, so that other work of the machine affects all alike. Invariant: a run ends
within its time; a peer that cannot be started, or fails a measure, has dashes and a note.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ParamSpec

from system_tests.benchmarks import accepting, measures, report
from system_tests.benchmarks.client import compiled
from system_tests.benchmarks.measures import Figures
from system_tests.benchmarks.peers import KAFKA, KFAKE, MINIBROKER, MOCK, Peer, start_peer
from system_tests.harness.brokers import RunningBroker, StartFailed
from system_tests.harness.jars import CACHE, ToolchainMissing

P = ParamSpec("P")

TIME_MAX_S = 12 * 60
STORMS_MAX = 5
WARM_UPS = 2
BUSY_SHARE_MAX = 0.05
PEERS = (MINIBROKER, KAFKA, MOCK, KFAKE)


class Session:
    """Collects figures and notes until time is up."""

    def __init__(self, time_max_s: float) -> None:
        self._end = time.monotonic() + time_max_s
        self.runs: report.Runs = defaultdict(lambda: defaultdict(list))
        self.notes: list[str] = []

    def measure(
        self, peer: str, what: str, measure: Callable[P, Figures], *of: P.args, **by: P.kwargs
    ) -> None:
        """Take one measure of one peer; what goes wrong becomes a note."""
        if time.monotonic() > self._end:
            self.note(f"time was up before {what} of {peer}")
            return
        if sys.stderr.isatty():
            print(f"  {what}: {peer}".ljust(70), end="\r", file=sys.stderr, flush=True)
        try:
            figures = measure(*of, **by)
        except Exception as failure:  # noqa: BLE001 (the clients' errors have no common ancestor)
            self.note(f"{what} of {peer}: {failure!r}")
            return
        for name, figure in figures.items():
            self.runs[name][peer].append(figure)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def start_all(names: Sequence[str], folder: Path, session: Session) -> list[Peer]:
    peers = []
    for name in names:
        try:
            peers.append(start_peer(name, folder))
        except (ToolchainMissing, StartFailed) as missing:
            first_lines = "; ".join(str(missing).splitlines()[:3])
            session.note(f"{name} is left out: {first_lines}")
    return peers


def measure_running(peers: list[Peer], session: Session, options: argparse.Namespace) -> None:
    for peer in peers:
        session.measure(peer.name, "memory", measures.idle_memory, peer)
    warm_up = Session(60)  # the first runs warm caches, just-in-time compilers and heaps up
    for peer in peers * WARM_UPS:
        warm_up.measure(peer.name, "warming up", measures.throughput, peer, options.records)
    lasting = [peer for peer in peers if peer.keeps_everything]
    for _ in range(options.runs):
        for peer in peers:
            session.measure(peer.name, "throughput", measures.throughput, peer, options.records)
        for peer in peers:
            session.measure(peer.name, "latency", measures.one_at_a_time, peer, 3000)
        for peer in lasting:
            session.measure(peer.name, "metadata", measures.metadata, peer, 2000)
    for peer in peers:
        if peer.control_url is not None:
            for _ in range(options.runs):
                session.measure(peer.name, "reset", measures.reset, peer, 5)


def measure_limits(names: Sequence[str], folder: Path, session: Session, runs: int) -> None:
    """Measure accept rates of brokers with and without limits in turn; then the effect of a
    storm.
    """
    kinds = [kind for kind in accepting.KINDS if kind.peer in names]
    pairs = start_kinds(kinds, folder / "limits", session, [accepting.NONE, accepting.ALL_GENEROUS])
    warm_up = Session(60)
    for run in range(-WARM_UPS, runs):
        for kind, (plain, limited) in pairs.items():
            (warm_up if run < 0 else session).measure(
                kind.peer,
                f"connections{', sharded' * kind.sharded}",
                accepting.cost_of_limits,
                kind,
                plain,
                limited,
                limited_first=bool(run % 2),
            )
    end_kinds(pairs)
    tight = start_kinds(kinds, folder / "storm", session, [accepting.ALL_TIGHT])
    for _ in range(min(runs, STORMS_MAX)):
        for kind, (broker,) in tight.items():
            session.measure(kind.peer, "storm", accepting.storm_beside, kind, broker)
    end_kinds(tight)
    if MINIBROKER in names:
        session.measure(MINIBROKER, "addresses", accepting.addresses_memory)


def start_kinds(
    kinds: Sequence[accepting.Kind],
    folder: Path,
    session: Session,
    limits: Sequence[accepting.Limits],
) -> dict[accepting.Kind, list[RunningBroker]]:
    """Start each kind once for each of the limits; those that can't be had are noted."""
    started: dict[accepting.Kind, list[RunningBroker]] = {}
    for kind in kinds:
        brokers: list[RunningBroker] = []
        try:
            for number, chosen in enumerate(limits):
                name = f"{kind.peer}-{kind.sharded}-{number}"
                brokers.append(kind.start(folder / name, chosen))
        except (ToolchainMissing, StartFailed) as missing:
            first_lines = "; ".join(str(missing).splitlines()[:3])
            session.note(f"{kind.row(kind.peer)} is left out: {first_lines}")
            end_kinds({kind: brokers})
        else:
            started[kind] = brokers
    return started


def end_kinds(started: Mapping[accepting.Kind, list[RunningBroker]]) -> None:
    for brokers in started.values():
        for broker in brokers:
            broker.stop()
            broker.forget()


def measure_starts(names: Sequence[str], folder: Path, session: Session, runs: int) -> None:
    for _ in range(runs):
        for name in (MINIBROKER, KAFKA):
            if name in names:
                session.measure(name, "cold start", measures.cold_start, name, folder)
        if MINIBROKER in names:
            session.measure(MINIBROKER, "fixture", measures.fixture_start, folder)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m system_tests.benchmarks", description=__doc__)
    parser.add_argument("--runs", type=int, default=7, help="runs of each measure (default: 7)")
    parser.add_argument(
        "--records", type=int, default=300_000, help="records a throughput run (default: 300,000)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir()),
        help="where all keep their data (default: memory-backed storage)",
    )
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--output", type=Path, default=CACHE / "benchmarks")
    options = parser.parse_args()

    session = Session(TIME_MAX_S)
    try:
        compiled()
    except ToolchainMissing as missing:
        print(missing, file=sys.stderr)
        return 1
    folder = Path(tempfile.mkdtemp(prefix="benchmarks-", dir=options.folder))
    measures.use_compiled_modules(folder)
    began = time.monotonic()
    peers: list[Peer] = []
    busy = measures.machine_busy_share()
    if busy > BUSY_SHARE_MAX:
        session.note(f"other programs kept the machine {busy:.0%} busy at the start")
    volume = options.records * measures.RECORD_BYTES * (options.runs + WARM_UPS)
    measures.touch_memory(folder, 2 * volume)
    try:
        measure_starts(options.peers, folder, session, options.runs)
        peers = start_all(options.peers, folder, session)
        try:
            measure_running(peers, session, options)
        finally:
            for peer in peers:
                peer.end()
        measure_limits(options.peers, folder, session, options.runs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show(session, peers, options, time.monotonic() - began)
    return 0


def show(session: Session, peers: list[Peer], options: argparse.Namespace, took_s: float) -> None:
    versions = {peer.name: peer.version for peer in peers}
    about = {
        "data": str(options.folder),
        "runs": options.runs,
        "records": options.records,
        "partitions": measures.PARTITIONS,
        "took_s": round(took_s),
    }
    options.output.mkdir(parents=True, exist_ok=True)
    file = options.output / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    file.write_text(
        report.as_json(session.runs, versions=versions, about=about, notes=session.notes)
    )
    here = report.machine()
    print(f"{here['cpu']}, {here['cores']} cores, Linux {here['kernel']}, Python {here['python']}")
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    print(
        f"median (least-most) of {options.runs} runs; all data in {options.folder};"
        f" throughput is {options.records:,} records over {measures.PARTITIONS} partitions,"
        " librdkafka's defaults;\nthe mock keeps 5 MB a partition, so nothing is consumed from it\n"
    )
    print(report.table(session.runs, [peer.name for peer in peers]))
    for note in session.notes:
        print(f"note: {note}")
    print(f"\n{file}")


if __name__ == "__main__":
    raise SystemExit(main())
