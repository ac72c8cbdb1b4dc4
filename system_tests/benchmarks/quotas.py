"""What quotas cost: ``python -m system_tests.benchmarks.quotas``.

Brokers with no quota, with all types of quotas for ten clients, and for ten thousand, take the same
Produce requests over one connection each, in turns of a fraction of a second, so that whatever else
the machine does falls on all alike.  There are several of each kind, as two processes of one kind
differ by more than quotas cost.  Prints medians over the turns in microseconds a request, latency
as the client sees it and processor time of all the broker's processes; and how much more it is
than without quotas in the same round, with the quarter and three quarters that these lay below.

Then ten thousand clients, each with quotas of its own, use all types of them, over a connection to
each processor.  Prints what memory the broker's processes hold before and after.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

from protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from protocol.messages.delete_topics import DeleteTopicsRequest
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.records import Record, build_batch
from system_tests.connections.dialling import Client
from system_tests.harness.brokers import RunningBroker, start_minibroker
from system_tests.harness.control import processes
from system_tests.harness.processes import pss_bytes
from system_tests.quotas.setting import VERSION, set_quota, set_quotas

ROUNDS, REQUESTS, BROKERS = 20, 200, 6
FEW, MANY = 10, 10_000
MB = 1_000_000
BOUND = 10.0**12
QUOTAS = dict.fromkeys(
    (
        "producer_byte_rate",
        "consumer_byte_rate",
        "request_percentage",
        "controller_mutation_rate",
    ),
    BOUND,
)
AT_ONCE = 1_000
CHANGES_EVERY = 20
PRODUCE = ProduceRequest(
    acks=1,
    topic_data=[
        TopicProduceData(
            name="t",
            partition_data=[
                PartitionProduceData(index=0, records=build_batch([Record(value=bytes(100))]))
            ],
        )
    ],
)
FETCH = FetchRequest(
    max_bytes=1000,
    topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition=0, fetch_offset=0)])],
)
FETCH_VERSION = 4


class Bench:
    """One broker, a connection to it, and the client-ids that it uses."""

    def __init__(self, stack: ExitStack, clients: int, *, limited: bool) -> None:
        self.broker = start_minibroker()
        stack.callback(self.broker.forget)
        stack.callback(self.broker.stop)
        self.clients = clients
        self.client = stack.enter_context(Client(self.broker.address))
        self.pids = pids(self.broker)
        self._number = 0
        create(self.client, "t")
        if limited:
            set_quota(self.client, {"user": None, "client-id": None}, **QUOTAS)
        self.latency_us: list[float] = []
        self.worked_us: list[float] = []
        self.ask(max(clients, REQUESTS))  # so that every counter is there

    def ask(self, count: int) -> list[float]:
        """Sends so many requests, each client-id in turn; the time of each."""
        took = []
        for _ in range(count):
            self._number += 1
            self.client.client_id = f"client-{self._number % self.clients}"
            began = time.perf_counter()
            self.client.ask(PRODUCE, VERSION)
            took.append((time.perf_counter() - began) * 1e6)
        return took

    def measure(self) -> None:
        before = worked_ns(self.pids)
        took = self.ask(REQUESTS)
        self.latency_us.append(statistics.median(took))
        self.worked_us.append((worked_ns(self.pids) - before) / REQUESTS / 1000)


def create(client: Client, name: str) -> None:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    response = client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 5)
    assert [each.error_code for each in response.topics] == [0], response


def pids(broker: RunningBroker) -> list[int]:
    return [each.pid for each in processes(broker).values() if each.pid is not None]


def worked_ns(those: Iterable[int]) -> int:
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in those)


def more(figures: Sequence[float], base: Sequence[float]) -> str:
    """How much more than in the same rounds of another, with the spread of that."""
    low, middle, high = statistics.quantiles(
        [each - other for each, other in zip(figures, base, strict=True)], n=4
    )
    return f"{middle:+.1f} ({low:+.1f} to {high:+.1f})"


def time_requests(rounds: int, brokers: int) -> None:
    with ExitStack() as stack:
        kinds = {
            "no quota": (FEW, False),
            f"all types, {FEW} clients": (FEW, True),
            f"all types, {MANY:,} clients": (MANY, True),
        }
        benches = {
            name: [Bench(stack, clients, limited=limited) for _ in range(brokers)]
            for name, (clients, limited) in kinds.items()
        }
        order = [bench for same in zip(*benches.values(), strict=True) for bench in same]
        for _ in range(rounds):
            for bench in order:
                bench.measure()
            order.reverse()
        print(f"medians of {brokers} brokers of a kind, {rounds} rounds of {REQUESTS} requests, us")
        print(f"{'latency':>10}{'more':>26}{'worked':>10}{'more':>26}")
        base = benches["no quota"]
        for name, same in benches.items():
            row = ""
            for figures, others in (
                ([bench.latency_us for bench in same], [bench.latency_us for bench in base]),
                ([bench.worked_us for bench in same], [bench.worked_us for bench in base]),
            ):
                ours, theirs = list(chain(*figures)), list(chain(*others))
                difference = "" if same is base else more(ours, theirs)
                row += f"{statistics.median(ours):10.1f}{difference:>26}"
            print(row, "", name)


def measure_memory(clients: int) -> None:
    """Prints the memory of all processes, each shared page divided by those who share it."""
    with ExitStack() as stack:
        broker = start_minibroker()
        stack.callback(broker.forget)
        stack.callback(broker.stop)
        processors = [name for name in processes(broker) if name.startswith("processor")]
        # The acceptor hands them round.
        dialled = [stack.enter_context(Client(broker.address)) for _ in processors]
        create(dialled[0], "t")
        use_all(dialled, 1)
        before = memory(broker)
        for first in range(0, clients, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, clients))
            set_quotas(dialled[0], [({"client-id": client_id(n)}, QUOTAS) for n in numbers])
        quotas = memory(broker)
        use_all(dialled, clients)
        after = memory(broker)
        print(f"memory in MB, {clients:,} clients with quotas of their own")
        print(f"{'before':>10}{'set':>10}{'all used':>10}")
        for name in after:
            print_row(name, [each[name] for each in (before, quotas, after)])
        print_row("all processes", [sum(each.values()) for each in (before, quotas, after)])


def print_row(name: str, sizes: Sequence[int]) -> None:
    print("".join(f"{size / MB:10.1f}" for size in sizes), "", name)


def memory(broker: RunningBroker) -> dict[str, int]:
    return {
        name: pss_bytes(each.pid)
        for name, each in processes(broker).items()
        if each.pid is not None
    }


def client_id(number: int) -> str:
    return f"client-{number}"


def use_all(dialled: Sequence[Client], clients: int) -> None:
    """Every client uses every type of quotas, on each connection.

    But that only some change topics, which takes long: each client's four counters lie in one
    piece of memory, whether they are used or not.
    """
    for number in range(clients):
        for client in dialled:
            client.client_id = client_id(number)
            client.ask(PRODUCE, VERSION)
            client.ask(FETCH, FETCH_VERSION)
        if number % CHANGES_EVERY == 0:
            create(dialled[0], "m")
            dialled[0].ask(DeleteTopicsRequest(topic_names=["m"], timeout_ms=1000), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description="What quotas cost.")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--brokers", type=int, default=BROKERS, help="of each kind")
    parser.add_argument("--clients", type=int, default=MANY, help="whose memory is measured")
    given = parser.parse_args()
    time_requests(given.rounds, given.brokers)
    measure_memory(given.clients)


if __name__ == "__main__":
    main()
