"""Cost of recording activity: ``python -m system_tests.benchmarks.activity``.

Brokers that record no connections, all of them (in each activity format) and a share of them take
turns with the same small Produce requests: first over several connections that pipeline requests,
then one request at a time. There are several brokers of each kind, because two of one kind differ
by some microseconds per request. Prints the figures of the brokers that record nothing, and the
differences of the others in the same round: medians and quartiles. Processor time is the figure
that other work on the machine affects least. It is given for each role, because the recorder has a
lower priority, and it includes the work that is left after the responses. The share of the machine
that other work took is printed at the end. Invariant: all brokers do the same work in every round,
and the order changes with each round.
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

from minibroker.broker.settings import FORMAT_ARROW, FORMAT_JSON
from minibroker_protocol.compiler import encode
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.wire import RequestHeader, encode_request_header
from system_tests.connections.dialling import Client
from system_tests.harness.brokers import RunningBroker, start_minibroker
from system_tests.harness.control import pids_by_name

BROKERS, SECONDS = 2, 90
TURNS, REQUESTS = 16, 400
CONNECTIONS = 8
IN_FLIGHT = 32
"""Requests that a connection sends before it waits for their responses."""
SAMPLE = 0.1
ROUNDS_MIN = 2
VERSION = 9
ROLES = ("processors", "workers", "recorder", "others")
QUIET_S = 0.35
"""Longer than the recorder sleeps while it has events to write."""
WRITTEN_METRIC = "minibroker_activity_events_total"
DROPPED_METRIC = "minibroker_activity_dropped_total"
BYTES_METRIC = "minibroker_activity_bytes_total"

Figures = dict[str, list[float]]


def produce(topic: str) -> bytes:
    """Encode a small request with its length prefix."""
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
        self.pids = pids_by_name(self.broker)
        self.figures: Figures = defaultdict(list)
        self.response_bytes = self._send_one(0)
        self._buffer = memoryview(bytearray(IN_FLIGHT * self.response_bytes))

    def _send_one(self, number: int) -> int:
        sock = self.sockets[number]
        sock.sendall(self.requests[number])
        size = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
        return 4 + len(sock.recv(size, socket.MSG_WAITALL))

    def pipelined(self, turns: int) -> None:
        """Send ``IN_FLIGHT`` requests at a time over every connection, ``turns`` times."""
        before, started = self.worked_us(), time.perf_counter()
        for number, sock in enumerate(self.sockets):
            sock.sendall(self.requests[number] * IN_FLIGHT)
        for turn in range(turns):
            for number, sock in enumerate(self.sockets):
                received = sock.recv_into(self._buffer, len(self._buffer), socket.MSG_WAITALL)
                assert received == len(self._buffer)
                if turn + 1 < turns:
                    sock.sendall(self.requests[number] * IN_FLIGHT)
        self._record(
            "pipelined", turns * IN_FLIGHT * CONNECTIONS, time.perf_counter() - started, before
        )

    def one_by_one(self, count: int) -> None:
        """Send one request at a time, over each connection in turn."""
        before, started = self.worked_us(), time.perf_counter()
        for number in range(count):
            self._send_one(number % CONNECTIONS)
        self._record("one in flight", count, time.perf_counter() - started, before)

    def _record(self, load: str, count: int, elapsed_s: float, before: Mapping[str, float]) -> None:
        self.wait_until_written()
        self.figures[f"{load}: requests/s"].append(count / elapsed_s)
        worked = {role: us - before[role] for role, us in self.worked_us().items()}
        for role in ROLES:
            self.figures[f"{load}: us/request, {role}"].append(worked[role] / count)
        self.figures[f"{load}: us/request, total"].append(sum(worked.values()) / count)

    def wait_until_written(self) -> None:
        """Wait until the recorder is idle, so that no work is left for another broker's turn."""
        while "recorder" in self.pids:
            before = self.worked_us()["recorder"]
            time.sleep(QUIET_S)
            if self.worked_us()["recorder"] == before:
                return

    def worked_us(self) -> dict[str, float]:
        """Return the processor time so far, by role."""
        worked = dict.fromkeys(ROLES, 0.0)
        for name, pid in self.pids.items():
            role = next((role for role in ROLES if name.startswith(role.removesuffix("s"))), None)
            scheduled = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii")
            worked[role or "others"] += int(scheduled.split()[0]) / 1000
        return worked


def metric(broker: RunningBroker, name: str) -> float:
    with urlopen(f"{broker.control_url}/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def used_by_others(benches: Sequence[Bench]) -> float:
    """Return the processor time of all other work on this machine so far, in seconds."""
    user, nice, system, _, _, interrupts, soft, steal = (
        int(ticks) / os.sysconf("SC_CLK_TCK")
        for ticks in Path("/proc/stat").read_text(encoding="ascii").split(None, 9)[1:9]
    )
    ours = sum(os.times()[:2]) + sum(sum(bench.worked_us().values()) for bench in benches) / 1e6
    return user + nice + system + interrupts + soft + steal - ours


def measure(benches: Sequence[Bench], turns: int, requests: int, seconds: float) -> int:
    """Run rounds for ``seconds``, at least two, after one for warm-up; return their number."""
    order, ends = list(benches), time.monotonic() + seconds
    rounds = -1
    while rounds < ROUNDS_MIN or time.monotonic() < ends:
        if rounds == 0:
            for bench in order:
                bench.figures.clear()
        for bench in order:
            bench.pipelined(turns)
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
    off = kinds["off"]
    for figure in off[0].figures:
        baseline = [value for bench in off for value in bench.figures[figure]]
        row = f"{figure:36}{statistics.median(baseline):9.1f}"
        for name, benches in list(kinds.items())[1:]:
            values = [value for bench in benches for value in bench.figures[figure]]
            differences = [each - other for each, other in zip(values, baseline, strict=True)]
            row += f"  {name} {spread(differences, statistics.median(baseline)):36}"
        print(row.rstrip())


def settings_of_kinds(sample: float) -> dict[str, dict[str, str]]:
    """The settings of each kind of broker; a ``sample`` of 0 omits the kind that samples."""
    kinds: dict[str, dict[str, str]] = {"off": {}} | {
        name: {"activity.enable": "true", "activity.format": name}
        for name in (FORMAT_ARROW, FORMAT_JSON)
    }
    if sample:
        kinds["sampled"] = kinds[FORMAT_ARROW] | {"activity.sample": str(sample)}
    return kinds


def print_totals(kinds: Mapping[str, Sequence[Bench]]) -> None:
    """Print how many events were written and dropped, and the compressed size of one."""
    for name, benches in kinds.items():
        written, dropped, size = (
            sum(metric(bench.broker, each) for bench in benches)
            for each in (WRITTEN_METRIC, DROPPED_METRIC, BYTES_METRIC)
        )
        each = f", {size / written:.0f} bytes each" if written else ""
        print(f"{name}: {written:,.0f} events written{each}; {dropped:,.0f} dropped")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the cost of recording activity.")
    parser.add_argument("--brokers", type=int, default=BROKERS, help="brokers of each kind")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time to start rounds in")
    parser.add_argument("--turns", type=int, default=TURNS, help="pipelined batches in a round")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="single requests in a round")
    parser.add_argument(
        "--sample",
        type=float,
        default=SAMPLE,
        help="share that is recorded; 0: no sampling",
    )
    options = parser.parse_args()
    settings = settings_of_kinds(options.sample)
    with ExitStack() as stack:
        kinds: dict[str, list[Bench]] = {name: [] for name in settings}
        for _ in range(options.brokers):
            for name, each in settings.items():
                kinds[name].append(Bench(stack, each))
        order = [bench for group in zip(*kinds.values(), strict=True) for bench in group]
        started, used_s = time.monotonic(), used_by_others(order)
        rounds = measure(order, options.turns, options.requests, options.seconds)
        elapsed_s = time.monotonic() - started
        others = (used_by_others(order) - used_s) / elapsed_s
        print(
            f"medians of {options.brokers} brokers of each kind and {rounds} rounds in"
            f" {elapsed_s:.0f} s"
        )
        print_figures(kinds)
        print_totals(kinds)
        print(f"other work used {others:.2f} of {os.cpu_count()} processors")


if __name__ == "__main__":
    main()
