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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from system_tests.benchmarks import (
    accepting,
    compaction,
    costs,
    fetch_sessions,
    measures,
    plan,
    report,
    small,
    snapshots,
)
from system_tests.benchmarks.client import CLIENT, FRAMES, SMALL, TRANSACTIONS, compiled
from system_tests.benchmarks.peers import (
    COMPILED_TREE,
    INTERPRETED,
    KAFKA,
    KFAKE,
    MINIBROKER,
    MOCK,
    Peer,
    start_peer,
)
from system_tests.benchmarks.plan import Session
from system_tests.harness.brokers import RunningBroker, StartFailed
from system_tests.harness.jars import CACHE, ToolchainMissing

TIME_MAX_S = 24 * 60
GROWTH_MAX_S = 10 * 60
STORMS_MAX = 3
WARM_UPS = 2
BUSY_SHARE_MAX = 0.05
PEERS = (MINIBROKER, INTERPRETED, KAFKA, MOCK, KFAKE)


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
        session.measure(peer.name, plan.MEMORY, measures.idle_memory, peer)
    for peer in peers:
        if peer.keeps_everything:
            session.measure(peer.name, plan.IDLE, small.idle_connections, peer)
            session.measure(peer.name, plan.SESSIONS, fetch_sessions.incremental, peer)
    rounds = plan.repeated(options.records, grows=plan.grows(options.growth, options.only))
    warm_up = Session(TIME_MAX_S)  # of caches, just-in-time compilers and heaps
    for each in session.warm_up(rounds) * WARM_UPS:
        for peer in each.peers(peers):
            warm_up.measure(peer.name, each.what, each.measure, peer)
    for _ in range(options.runs):
        for each in session.chosen(rounds):
            for peer in each.peers(peers):
                session.measure(peer.name, each.what, each.measure, peer)
    measure_controlled([peer for peer in peers if peer.name == MINIBROKER], session, options.runs)


def measure_controlled(peers: list[Peer], session: Session, runs: int) -> None:
    """Measure what the control API of a peer does."""
    for peer in peers:
        for _ in range(runs):
            session.measure(peer.name, plan.COMPACTION, compaction.compaction, peer)
        for _ in range(runs):
            session.measure(peer.name, plan.RESET, measures.reset, peer, 5)
        for _ in range(runs):
            session.measure(peer.name, plan.SNAPSHOTS, snapshots.snapshots, peer)


def measure_limits(names: Sequence[str], folder: Path, session: Session, runs: int) -> None:
    """Measure accept rates of brokers with and without limits in turn; then the effect of a
    storm.
    """
    kinds = [kind for kind in accepting.KINDS if kind.peer in names]
    if session.wants(plan.CONNECTIONS):
        measure_connections(kinds, folder, session, runs)
    if session.wants(plan.STORM):
        tight = start_kinds(kinds, folder / "storm", session, [accepting.ALL_TIGHT])
        for _ in range(min(runs, STORMS_MAX)):
            for kind, (broker,) in tight.items():
                session.measure(kind.peer, plan.STORM, accepting.storm_beside, kind, broker)
        end_kinds(tight)
    if MINIBROKER in names:
        session.measure(MINIBROKER, plan.ADDRESSES, accepting.addresses_memory)


def measure_connections(
    kinds: Sequence[accepting.Kind], folder: Path, session: Session, runs: int
) -> None:
    pairs = start_kinds(kinds, folder / "limits", session, [accepting.NONE, accepting.ALL_GENEROUS])
    warm_up = Session(60)
    for run in range(-WARM_UPS, runs):
        for kind, (plain, limited) in pairs.items():
            (warm_up if run < 0 else session).measure(
                kind.peer,
                plan.CONNECTIONS,
                accepting.cost_of_limits,
                kind,
                plain,
                limited,
                limited_first=bool(run % 2),
            )
    end_kinds(pairs)


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
                session.measure(name, plan.START, measures.cold_start, name, folder)
        if MINIBROKER in names:
            session.measure(MINIBROKER, plan.FIXTURE, measures.fixture_start, folder)


def measure_costs(session: Session, runs: int) -> None:
    """Measure what quotas, activity and the journal cost; the first round is the warm-up."""
    if not session.wants(plan.COSTS):
        return
    with ExitStack() as stack:
        brokers = costs.Costs(stack)
        warm_up = Session(TIME_MAX_S)
        for run in range(-1, runs):
            for measure in (brokers.of_quotas, brokers.of_activity, brokers.of_journal):
                (warm_up if run < 0 else session).measure(MINIBROKER, plan.COSTS, measure)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m system_tests.benchmarks", description=__doc__)
    found.add_argument("--runs", type=int, default=5, help="runs of each measure (default: 5)")
    found.add_argument(
        "--records", type=int, default=300_000, help="records a throughput run (default: 300,000)"
    )
    found.add_argument(
        "--folder",
        type=Path,
        default=Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir()),
        help="where all keep their data (default: memory-backed storage)",
    )
    found.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    found.add_argument(
        "--only",
        nargs="+",
        choices=plan.NAMES,
        default=[],
        metavar="NAME",
        help=f"measure only these: {', '.join(plan.NAMES)}",
    )
    found.add_argument(
        "--growth",
        type=Path,
        metavar="FOLDER",
        help="measure the growth with connections, partitions and sizes, and draw it into FOLDER",
    )
    found.add_argument("--output", type=Path, default=CACHE / "benchmarks")
    return found


def main() -> int:
    options = parser().parse_args()
    grows = plan.grows(options.growth, options.only)
    session = Session(TIME_MAX_S + grows * GROWTH_MAX_S, options.only)
    try:
        measures.use_compiled_tree(COMPILED_TREE)
        for program in (CLIENT, SMALL, FRAMES, TRANSACTIONS):
            compiled(program)
    except ToolchainMissing as missing:
        print(missing, file=sys.stderr)
        return 1
    folder = Path(tempfile.mkdtemp(prefix="benchmarks-", dir=options.folder))
    measures.keep_bytecode(folder)
    began = time.monotonic()
    busy = measures.machine_busy_share()
    if busy > BUSY_SHARE_MAX:
        session.note(f"other programs kept the machine {busy:.0%} busy at the start")
    try:
        peers = measure_all(session, folder, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show(session, peers, options, time.monotonic() - began)
    return 0


def measure_all(session: Session, folder: Path, options: argparse.Namespace) -> list[Peer]:
    """Take all measures; return the peers, which have ended."""
    volume = options.records * measures.RECORD_BYTES * (options.runs + WARM_UPS)
    measures.touch_memory(folder, 2 * volume)
    measure_starts(options.peers, folder, session, options.runs)
    peers: list[Peer] = []
    if session.wants(*plan.OF_RUNNING_PEERS):
        peers = start_all(options.peers, folder, session)
        try:
            measure_running(peers, session, options)
        finally:
            for peer in peers:
                peer.end()
    measure_limits(options.peers, folder, session, options.runs)
    if MINIBROKER in options.peers:
        measure_costs(session, options.runs)
    return peers


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
        " librdkafka's defaults;\nthe mock keeps 5 MB a partition and answers a waiting Fetch only"
        " when its time is over, so nothing is consumed from it\n"
    )
    names = [name for name in PEERS if name in options.peers]
    print(report.table(session.runs, names))
    if options.growth is not None:
        from system_tests.benchmarks import growth_plot

        for picture in growth_plot.draw(session.runs, options.growth):
            print(picture)
    for note in session.notes:
        print(f"note: {note}")
    print(f"\n{file}")


if __name__ == "__main__":
    raise SystemExit(main())
