"""Share of a neighbor beside abusive clients: ``python -m system_tests.benchmarks.fairness``.

A neighbor without quota produces while, in turn, there are: no other client; an abuser limited by a
byte quota; none; one limited by a request quota, which sends a request for each small record; none;
both without limits; none. Apache Kafka and minibroker take turns with the same situations. On few
cores the clients compete with each other and with the broker for processors, whatever the broker
does, so there are two neighbors: one offers a fixed load, of which it should get all, and one takes
whatever it can, whose share shows the cost of an abuser in processor time too. That share is also
given for the same processor time of broker and neighbor, which is what it would be if the abusers
ran elsewhere, and is meaningful on a busy machine. Invariant: a share is relative to the same
neighbor alone right before and right after, the order changes from run to run, and brokers keep
little data, in memory that was touched before, so that no client waits for a disk or for memory of
the host.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.delete_topics import DeleteTopicsRequest
from system_tests.benchmarks.client import PATIENCE_S, RunFailed, compiled, run
from system_tests.benchmarks.fairness_timelines import (
    BEFORE_S,
    SITUATION_S,
    SLICES_A_SECOND,
    Flow,
    Timeline,
    Timelines,
)
from system_tests.benchmarks.measures import cpu_seconds, machine_busy_share, touch_memory
from system_tests.benchmarks.peers import KAFKA, MINIBROKER
from system_tests.benchmarks.report import machine
from system_tests.connections.dialling import Client, set_quota
from system_tests.harness.brokers import KAFKA_JVM, RunningBroker, start_kafka, start_minibroker
from system_tests.harness.jars import ToolchainMissing

AHEAD_S = 0.4
"""How long clients need to start and connect."""

# A rate is an average over about as long as a situation takes, so that each situation gets what a
# quota allows: a burst, and nothing for a while. Deleted segments are removed at once, so that all
# write to the same memory.
SETTINGS = {
    "quota.window.num": "2",
    "quota.window.size.seconds": "1",
    "log.segment.bytes": "16777216",
    "log.retention.bytes": "67108864",
    "log.retention.check.interval.ms": "100",
    "log.segment.delete.delay.ms": "0",
}
AT_ONCE = {"log.initial.task.delay.ms": "100"}
"""For Kafka, which starts to look for expired segments after half a minute."""
MEMORY_BYTES = 2 * 10**9
RECORD_BYTES, SMALL_BYTES = 1000, 100
LEAST_SHARE = 0.95
BUSY_SHARE_MAX = 0.05
FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
PEERS = (MINIBROKER, KAFKA)


class Abuser(NamedTuple):
    """A client that sends as fast as it may."""

    name: str
    quota: Mapping[str, float]
    size: int
    rate: int
    """As `client.c` has it."""


BULK = Abuser("bulk", {}, RECORD_BYTES, 0)
BUSY = Abuser("busy", {}, SMALL_BYTES, -1)
BULK_HELD = BULK._replace(name="bulk-held", quota={"producer_byte_rate": 5e6})
BUSY_HELD = BUSY._replace(name="busy-held", quota={"request_percentage": 5.0})
SITUATIONS: dict[str, Sequence[Abuser]] = {
    "alone": (),
    "beside bytes held to 5 MB/s": (BULK_HELD,),
    "beside requests held to 5 %": (BUSY_HELD,),
    "beside both, not held": (BULK, BUSY),
}
ALONE, *BESIDE = SITUATIONS
NEIGHBOURS = {"10 MB/s offered": 10_000_000, "all it can": 0}


def order_of(run: int) -> list[str]:
    """The situations one after the other, alone before and after each."""
    first = run % len(BESIDE)
    return [ALONE] + [each for name in BESIDE[first:] + BESIDE[:first] for each in (name, ALONE)]


class Peer:
    """A broker with the quotas of its abusers."""

    def __init__(self, name: str, broker: RunningBroker) -> None:
        self.name = name
        self._pid = broker.process.pid
        self.servers = broker.bootstrap_servers
        all_abusers = [abuser for abusers in SITUATIONS.values() for abuser in abusers]
        self.address = broker.address
        self.topics = ["neighbour", *(abuser.name for abuser in all_abusers)]
        with Client(self.address) as client:
            for abuser in all_abusers:
                if abuser.quota:
                    set_quota(client, {"client-id": abuser.name}, **abuser.quota)

    @contextmanager
    def emptied(self) -> Iterator[None]:
        """With a topic for each client, for as long as that."""
        topics = [
            CreatableTopic(name=name, num_partitions=1, replication_factor=1)
            for name in self.topics
        ]
        with Client(self.address) as client:
            client.ask(CreateTopicsRequest(topics=topics, timeout_ms=5000), 5)
            yield
            client.ask(DeleteTopicsRequest(topic_names=self.topics, timeout_ms=5000), 5)

    def warm_up(self) -> None:
        with self.emptied():
            run("produce", self.servers, "neighbour", 500_000, RECORD_BYTES, 1)

    def measure(self, rate: int, order: Sequence[str]) -> Timeline:
        """Measure one neighbor beside every situation, in an order."""
        total_s = BEFORE_S + SITUATION_S * len(order)
        with self.emptied(), ExitStack() as stack:
            began = time.monotonic() + AHEAD_S
            neighbour = self._start(
                stack, "neighbour", began, total_s, size=RECORD_BYTES, rate=rate
            )
            abusers = []
            for number, situation in enumerate(order):
                for abuser in SITUATIONS[situation]:
                    start = BEFORE_S + SITUATION_S * number
                    process = self._start(
                        stack,
                        abuser.name,
                        began + start,
                        SITUATION_S,
                        size=abuser.size,
                        rate=abuser.rate,
                    )
                    abusers.append((abuser.name, start, process))
            ends = [began + BEFORE_S + SITUATION_S * at for at in range(len(order))]
            worked = list(self._worked_s(ends, neighbour.pid))
            own, own_s = _flow(neighbour)
            ended_s = cpu_seconds(self._pid) + own_s
            worked_s = [after - before for before, after in pairwise([*worked, ended_s])]
            flows = {}
            for name, start, process in abusers:
                flow, _ = _flow(process)
                flows[name] = [0.0] * round(start * SLICES_A_SECOND) + flow
            return Timeline(order, own, flows, worked_s)

    def _worked_s(self, times: Sequence[float], neighbour: int) -> Iterator[float]:
        """What broker and neighbour have worked by each time."""
        for at in times:
            time.sleep(max(0, at - time.monotonic()))
            yield cpu_seconds(self._pid) + cpu_seconds(neighbour)

    def _start(
        self,
        stack: ExitStack,
        name: str,
        began: float,
        last_s: float,
        *,
        size: int,
        rate: int,
    ) -> subprocess.Popen[str]:
        times = str(round(began * 1000)), str(round(last_s * 1000))
        process = stack.enter_context(
            subprocess.Popen(
                [str(compiled()), "flow", self.servers, name, *times, str(size), str(rate), name],
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(process.kill)
        return process


def _flow(process: subprocess.Popen[str]) -> tuple[Flow, float]:
    """Return a client's throughput, and its processor seconds."""
    printed, _ = process.communicate(timeout=PATIENCE_S)
    if process.returncode != 0:
        raise RunFailed(f"{process.args!r}: status {process.returncode}")
    figures = json.loads(printed)
    return figures["slices"], figures["cpu_seconds"]


def shares_text(shares: Sequence[float]) -> str:
    """The median, with the least and the most."""
    return f"{statistics.median(shares):8.1%} ({min(shares):.1%}-{max(shares):.1%})"


def table(found: Timelines) -> str:
    """Medians of all runs: rates, and shares with the least and the most."""
    lines = []
    for (peer, neighbour), timelines in found.items():
        lines.append(f"{peer}, neighbour: {neighbour}")
        alone = statistics.median(t.alone(each) for t in timelines for each in BESIDE) / 1e6
        lines.append(f"  {ALONE:<30}{alone:8.2f} MB/s")
        for situation in BESIDE:
            abusers = SITUATIONS[situation]
            own = statistics.median(t.rate(situation, t.neighbour) for t in timelines) / 1e6
            shares = [timeline.share(situation) for timeline in timelines]
            line = f"  {situation:<30}{own:8.2f} MB/s{shares_text(shares)} of alone"
            if NEIGHBOURS[neighbour] == 0:
                shares = [timeline.share_of_work(situation) for timeline in timelines]
                line += f",{shares_text(shares)} for as much work"
            for abuser in abusers:
                rate = statistics.median(
                    t.rate(situation, t.abusers[abuser.name]) for t in timelines
                )
                requests = f"{rate / abuser.size:,.0f} requests/s"
                line += f"  {f'{rate / 1e6:.1f} MB/s' if abuser.rate == 0 else requests}"
            if all(abuser.quota for abuser in abusers):
                low = statistics.median(shares) < LEAST_SHARE
                line += f"  BELOW {LEAST_SHARE:.0%}" if low else ""
            lines.append(line)
    return "\n".join(lines)


def measure(peers: Sequence[Peer], runs: int) -> Timelines:
    """Measure peers and neighbors in turns; each run starts with another situation."""
    found: Timelines = defaultdict(list)
    for peer in peers:
        peer.warm_up()
    for number in range(runs):
        order = order_of(number)
        for neighbour, rate in NEIGHBOURS.items():
            for peer in peers:
                found[peer.name, neighbour].append(peer.measure(rate, order))
    return found


def start_all(names: Sequence[str], folder: Path, stack: ExitStack) -> list[Peer]:
    """The brokers that this machine can have."""
    peers = []
    for name in names:
        start = {MINIBROKER: _start_minibroker, KAFKA: _start_kafka}[name]
        try:
            broker = start(folder / name)
        except ToolchainMissing as missing:
            print(f"note: {name} is left out: {missing}")
            continue
        stack.callback(broker.forget)
        stack.callback(broker.stop)
        peers.append(Peer(name, broker))
    return peers


def _start_minibroker(folder: Path) -> RunningBroker:
    return start_minibroker(data_dir=folder, settings=SETTINGS)


def _start_kafka(folder: Path) -> RunningBroker:
    return start_kafka(folder, settings=SETTINGS | AT_ONCE, jvm=KAFKA_JVM)


def main() -> None:
    parser = argparse.ArgumentParser(description="What an abuser leaves for a neighbour.")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    parser.add_argument("--folder", default=FOLDER, help="where brokers keep their data")
    parser.add_argument("--plot", type=Path, help="draw the first run into this file")
    options = parser.parse_args()
    busy = machine_busy_share()
    folder = Path(tempfile.mkdtemp(prefix="fairness-", dir=options.folder))
    try:
        touch_memory(folder, MEMORY_BYTES)
        with ExitStack() as stack:
            found = measure(start_all(options.peers, folder, stack), options.runs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    here = machine()
    print(f"{here['cpu']}, {here['cores']} cores; medians of {options.runs} runs (least-most)")
    print(table(found))
    if busy > BUSY_SHARE_MAX:
        print(f"note: other programs kept the machine {busy:.0%} busy at the start")
    if options.plot is not None:
        from system_tests.benchmarks.fairness_plot import draw

        draw(found, options.plot)
        print(options.plot)


if __name__ == "__main__":
    main()
