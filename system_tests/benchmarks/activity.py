"""What telling of activity costs: ``python -m system_tests.benchmarks.activity``.

Two brokers, one that tells and one that does not, take the same small Produce requests in turns:
several connections that send ahead of their answers, for requests a second, and one that does not,
for latency. Prints medians over the rounds. The processor time of all the broker's processes is
what other work on the machine disturbs least; that of the recorder is told apart, as it yields to
whatever serves clients. The invariant: both brokers do the same work in every round, and who is
first changes from round to round.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import time
from collections import defaultdict
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

ROUNDS = 9
CONNECTIONS = 8
AHEAD = 32
"""Requests that a connection sends before it waits for their answers."""
VERSION = 9
RECORDER = "recorder"
QUIET_S = 0.35
"""Longer than the recorder sleeps while there is anything to write."""
TOLD = "minibroker_activity_events_total"
DROPPED = "minibroker_activity_dropped_total"


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

    def __init__(self, stack: ExitStack, **settings: str) -> None:
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
        self.figures: dict[str, list[float]] = defaultdict(list)
        self.answer_bytes = self._ask_one(0)
        self._room = memoryview(bytearray(AHEAD * self.answer_bytes))

    def _ask_one(self, number: int) -> int:
        sock = self.sockets[number]
        sock.sendall(self.requests[number])
        size = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
        return 4 + len(sock.recv(size, socket.MSG_WAITALL))

    def throughput(self, turns: int) -> None:
        """Every connection sends ahead, as often as there are turns."""
        before, began = self.worked_ns(), time.perf_counter()
        for number, sock in enumerate(self.sockets):
            sock.sendall(self.requests[number] * AHEAD)
        for turn in range(turns):
            for number, sock in enumerate(self.sockets):
                got = sock.recv_into(self._room, len(self._room), socket.MSG_WAITALL)
                assert got == len(self._room)
                if turn + 1 < turns:
                    sock.sendall(self.requests[number] * AHEAD)
        took_s = time.perf_counter() - began
        self.settle()
        count = turns * AHEAD * CONNECTIONS
        self.figures["requests/s"].append(count / took_s)
        spent_ns = {name: worked - before[name] for name, worked in self.worked_ns().items()}
        recorder_ns = spent_ns.pop(RECORDER, 0)
        self.figures["µs worked, recorder"].append(recorder_ns / count / 1000)
        self.figures["µs worked, others"].append(sum(spent_ns.values()) / count / 1000)

    def latency(self, count: int) -> None:
        """One request at a time."""
        took = []
        for _ in range(count):
            began = time.perf_counter()
            self._ask_one(0)
            took.append((time.perf_counter() - began) * 1e6)
        self.settle()
        self.figures["latency µs, median"].append(statistics.median(took))
        self.figures["latency µs, p99"].append(statistics.quantiles(took, n=100)[98])

    def settle(self) -> None:
        """Waits until nothing is left to be told, so that no work falls into another's turn."""
        while RECORDER in self.pids:
            before = self.worked_ns()[RECORDER]
            time.sleep(QUIET_S)
            if self.worked_ns()[RECORDER] == before:
                return

    def worked_ns(self) -> dict[str, int]:
        """What each process has worked so far."""
        return {
            name: int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0])
            for name, pid in self.pids.items()
        }

    def median(self, figure: str) -> float:
        """Of all rounds."""
        return statistics.median(self.figures[figure])


def metric(broker: RunningBroker, name: str) -> float:
    with urlopen(f"{broker.control_url}/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def main() -> None:
    parser = argparse.ArgumentParser(description="What telling of activity costs.")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--turns", type=int, default=100, help="of throughput, in a round")
    parser.add_argument("--requests", type=int, default=2000, help="for latency, in a round")
    options = parser.parse_args()
    with ExitStack() as stack:
        benches = {"off": Bench(stack), "on": Bench(stack, **{"activity.enable": "true"})}
        order = list(benches.values())
        for number in range(-1, options.rounds):
            for bench in order:
                bench.throughput(options.turns)
            for bench in order:
                bench.latency(options.requests)
            order.reverse()
            if number < 0:  # the first warms up
                for bench in order:
                    bench.figures.clear()
        off, on = benches.values()
        written, dropped = metric(on.broker, TOLD), metric(on.broker, DROPPED)
    print(f"medians of {options.rounds} rounds{'off':>14}{'on':>12}{'change':>12}")
    for figure in on.figures:
        before, after = off.median(figure), on.median(figure)
        change = f"{after / before - 1:+12.1%}" if before else f"{'':12}"
        print(f"{figure:25}{before:14,.1f}{after:12,.1f}{change}")
    print(f"{written:,.0f} events written, {dropped:,.0f} dropped")


if __name__ == "__main__":
    main()
