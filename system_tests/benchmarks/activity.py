"""Cost of activity: ``python -m system_tests.benchmarks.activity``.

Brokers that record all connections, a share of them and none get the same small Produce requests in
turns: several connections that pipeline requests, and one that does not. There are several brokers
of each kind, because two of one kind differ by some microseconds per request. Prints the figures of
the brokers without activity, and the differences of the others in the same round: medians and
quartiles. Processor time is least affected by other work on the machine; it is given by process,
because the recorder has a lower priority, and the work that remains after the responses is counted
too. The share of the machine that other work took is printed at the end. Invariant: all brokers do
the same work in every round, and the order changes with each round.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

from protocol.compiler import encode
from protocol.headers import RequestHeader, encode_request_header
from protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.records import Record, build_batch
from system_tests.connections.dialling import Client
from system_tests.harness.brokers import RunningBroker, start_minibroker
from system_tests.harness.control import processes

BROKERS, SECONDS = 2, 90
TURNS, REQUESTS = 16, 400
CONNECTIONS = 8
AHEAD = 32
"""Requests that a connection sends before it waits for their answers."""
SAMPLE = 0.1
ROUNDS_MIN = 2
VERSION = 9
PARTS = ("processors", "workers", "recorder", "others")
QUIET_S = 0.35
"""Longer than the recorder sleeps while there is anything to write."""
TOLD = "minibroker_activity_events_total"
DROPPED = "minibroker_activity_dropped_total"

Figures = dict[str, list[float]]


def produce(topic: str) -> bytes:
    """A small request as it goes over the wire."""
    batch = build_batch([Record(value=bytes(100))])
    data = [PartitionProduceData(index=0, records=batch)]
    request = ProduceRequest(
        acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
    )
    header = encode_request_header(RequestHeader(0, VERSION, 1, "bench"))
    body = header + encode(request, VERSION)
    return len(body).to_bytes(4, "big") + body


class Bench:
    """One broker and the connections to it."""

    def __init__(self, stack: ExitStack, settings: Mapping[str, str]) -> None:
        self.broker = start_minibroker(settings={"log.segment.bytes": "67108864", **settings})
        stack.callback(self.broker.forget)
        stack.callback(self.broker.stop)
        with Client(self.broker.address) as client:
            topics = [
                CreatableTopic(name=f"t{number}", num_partitions=1, replication_factor=1)
                for number in range(CONNECTIONS)
            ]
            client.ask(CreateTopicsRequest(topics=topics, timeout_ms=1000), 5)
        self.requests = [produce(f"t{number}") for number in range(CONNECTIONS)]
        self.sockets = [
            stack.enter_context(socket.create_connection(self.broker.address))
            for _ in range(CONNECTIONS)
        ]
        self.pids = {name: each.pid for name, each in processes(self.broker).items()}
        self.figures: Figures = defaultdict(list)
        self.answer_bytes = self._ask_one(0)
        self._room = memoryview(bytearray(AHEAD * self.answer_bytes))

    def _ask_one(self, number: int) -> int:
        sock = self.sockets[number]
        sock.sendall(self.requests[number])
        size = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
        return 4 + len(sock.recv(size, socket.MSG_WAITALL))

    def ahead(self, turns: int) -> None:
        """Every connection sends ahead, as often as there are turns."""
        before, began = self.worked_us(), time.perf_counter()
        for number, sock in enumerate(self.sockets):
            sock.sendall(self.requests[number] * AHEAD)
        for turn in range(turns):
            for number, sock in enumerate(self.sockets):
                got = sock.recv_into(self._room, len(self._room), socket.MSG_WAITALL)
                assert got == len(self._room)
                if turn + 1 < turns:
                    sock.sendall(self.requests[number] * AHEAD)
        self._note("ahead", turns * AHEAD * CONNECTIONS, time.perf_counter() - began, before)

    def one_by_one(self, count: int) -> None:
        """One request at a time, of each connection in turn."""
        before, began = self.worked_us(), time.perf_counter()
        for number in range(count):
            self._ask_one(number % CONNECTIONS)
        self._note("one by one", count, time.perf_counter() - began, before)

    def _note(self, way: str, count: int, took_s: float, before: Mapping[str, float]) -> None:
        self.settle()
        self.figures[f"{way}: requests/s"].append(count / took_s)
        worked = {part: us - before[part] for part, us in self.worked_us().items()}
        for part in PARTS:
            self.figures[f"{way}: us worked, {part}"].append(worked[part] / count)
        self.figures[f"{way}: us worked in all"].append(sum(worked.values()) / count)

    def settle(self) -> None:
        """Wait until no event is left to send, so that no work is done in another's turn."""
        while "recorder" in self.pids:
            before = self.worked_us()["recorder"]
            time.sleep(QUIET_S)
            if self.worked_us()["recorder"] == before:
                return

    def worked_us(self) -> dict[str, float]:
        """Return the work of the processes so far, by part."""
        worked = dict.fromkeys(PARTS, 0.0)
        for name, pid in self.pids.items():
            part = next((part for part in PARTS if name.startswith(part.removesuffix("s"))), None)
            scheduled = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii")
            worked[part or "others"] += int(scheduled.split()[0]) / 1000
        return worked


def metric(broker: RunningBroker, name: str) -> float:
    with urlopen(f"{broker.control_url}/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def taken_by_others(benches: Sequence[Bench]) -> float:
    """Return the processor time that other work on this machine took so far, in seconds."""
    user, nice, system, _, _, interrupts, soft, steal = (
        int(ticks) / os.sysconf("SC_CLK_TCK")
        for ticks in Path("/proc/stat").read_text(encoding="ascii").split(None, 9)[1:9]
    )
    ours = sum(os.times()[:2]) + sum(sum(bench.worked_us().values()) for bench in benches) / 1e6
    return user + nice + system + interrupts + soft + steal - ours


def measure(benches: Sequence[Bench], turns: int, requests: int, seconds: float) -> int:
    """Run rounds for ``seconds``, at least two, after one to warm up; return their number."""
    order, ends = list(benches), time.monotonic() + seconds
    rounds = -1
    while rounds < ROUNDS_MIN or time.monotonic() < ends:
        if rounds == 0:
            for bench in order:
                bench.figures.clear()
        for bench in order:
            bench.ahead(turns)
        for bench in order:
            bench.one_by_one(requests)
        order.reverse()
        rounds += 1
    return rounds


def spread(differences: Sequence[float], of: float) -> str:
    low, middle, high = statistics.quantiles(differences, n=4)
    share = f"{middle / of:+6.1%}" if of else ""
    return f"{middle:+8.1f} ({low:+.1f} to {high:+.1f}) {share}"


def print_figures(kinds: Mapping[str, Sequence[Bench]]) -> None:
    untold = kinds["off"]
    for figure in untold[0].figures:
        before = [value for bench in untold for value in bench.figures[figure]]
        row = f"{figure:35}{statistics.median(before):9.1f}"
        for name, benches in list(kinds.items())[1:]:
            after = [value for bench in benches for value in bench.figures[figure]]
            more = [each - other for each, other in zip(after, before, strict=True)]
            row += f"  {name} {spread(more, statistics.median(before)):36}"
        print(row.rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(description="What recording activity costs.")
    parser.add_argument("--brokers", type=int, default=BROKERS, help="of each kind")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="when no round begins")
    parser.add_argument("--turns", type=int, default=TURNS, help="of sending ahead, in a round")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="one by one, in a round")
    parser.add_argument(
        "--sample", type=float, default=SAMPLE, help="share that is recorded; 0: none"
    )
    given = parser.parse_args()
    settings: dict[str, dict[str, str]] = {"off": {}, "on": {"activity.enable": "true"}}
    if given.sample:
        settings["sampled"] = {"activity.enable": "true", "activity.sample": str(given.sample)}
    with ExitStack() as stack:
        kinds: dict[str, list[Bench]] = {name: [] for name in settings}
        for _ in range(given.brokers):
            for name, each in settings.items():
                kinds[name].append(Bench(stack, each))
        order = [bench for alike in zip(*kinds.values(), strict=True) for bench in alike]
        began, taken = time.monotonic(), taken_by_others(order)
        rounds = measure(order, given.turns, given.requests, given.seconds)
        lasted_s = time.monotonic() - began
        others = (taken_by_others(order) - taken) / lasted_s
        print(
            f"medians of {given.brokers} brokers of a kind and {rounds} rounds in {lasted_s:.0f} s"
        )
        print_figures(kinds)
        for name in settings:
            written, dropped = (
                sum(metric(bench.broker, each) for bench in kinds[name]) for each in (TOLD, DROPPED)
            )
            print(f"{name}: {written:,.0f} events written, {dropped:,.0f} dropped")
        print(f"everything else took {others:.2f} of {os.cpu_count()} processors")


if __name__ == "__main__":
    main()
