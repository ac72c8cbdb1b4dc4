"""Cost of quotas: ``python -m system_tests.benchmarks.quotas``.

Brokers without quotas and with all quota types get the same Produce requests over one connection
each, from ten clients in turn and from ten thousand, in turns of a fraction of a second, so that
other work of the machine affects all alike. There are several brokers of each kind, because two
processes of one kind differ by more than the cost of quotas. Prints medians over the turns in
microseconds per request: the latency that the client measures, of the quickest quarter, because
slower ones reflect other work of the machine, and the processor time of all the broker's processes;
and differences within a round, with their quartiles and the 95 % confidence interval of their
median: if it contains 0, there is no significant difference. The additional cost of ten thousand
clients includes what ten thousand names cost any broker.

The cost of recording is measured alone, too: one process records what a request records, and reads
half a megabyte in between in place of a broker's other work. On a shared machine, the quickest
tenth is more reliable than the median.

Then ten thousand clients, each with its own quotas, use all quota types, over a connection to each
processor. Prints the memory of the broker's processes before and after.

Each part can be run alone: ``requests``, with fewer ``--rounds`` and ``--brokers`` within 100 s on
a slow machine, ``counting``, ``memory``.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from minibroker.broker.quotas.ledger import QuotaLedger
from minibroker.broker.quotas.manager import PRODUCE as BYTES_PRODUCED
from minibroker.broker.quotas.manager import ClientQuotaManager, QuotaUser
from minibroker.broker.quotas.types import (
    CLIENT_QUOTA_TYPES,
    DEFAULT,
    USER_AND_CLIENT,
    Entity,
    QuotaTable,
)
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.delete_topics import DeleteTopicsRequest
from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from system_tests.connections.dialling import Client, set_quota, set_quotas
from system_tests.harness.brokers import RunningBroker, start_minibroker
from system_tests.harness.control import pids_by_name, processes
from system_tests.harness.processes import pss_bytes
from system_tests.quotas.quota_requests import VERSION

PARTS = ("requests", "counting", "memory")
ROUNDS, REQUESTS, BROKERS = 30, 400, 4
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
NAMES = [f"client-{number}" for number in range(MANY)]
AT_ONCE = 1_000
CHANGES_EVERY = 20
COUNTED, COUNTED_EVERY_MS = 40_000, 0.2
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


class Turn(NamedTuple):
    """Some requests: the latency that a quarter stays below, and the time worked for one."""

    latency_us: float
    worked_us: float


class Bench:
    """One broker, a connection to it, and the client-ids that it uses."""

    def __init__(self, stack: ExitStack, *, limited: bool, clients: int = MANY) -> None:
        self.broker = start_minibroker()
        stack.callback(self.broker.forget)
        stack.callback(self.broker.stop)
        self.client = stack.enter_context(Client(self.broker.address))
        self.pids = pids(self.broker)
        self._sent = dict.fromkeys((FEW, MANY), 0)
        self.turns: dict[int, list[Turn]] = {FEW: [], MANY: []}
        create(self.client, "t")
        if limited:
            set_quota(self.client, {"user": None, "client-id": None}, **QUOTAS)
        self.ask(clients, max(clients, REQUESTS))  # so that every counter is there

    def ask(self, clients: int, count: int) -> list[float]:
        """Send requests, each client-id in turn; return the time of each."""
        first = self._sent[clients]
        self._sent[clients] += count
        took = []
        for number in range(first, first + count):
            self.client.client_id = NAMES[number % clients]
            began = time.perf_counter()
            self.client.ask(PRODUCE, VERSION)
            took.append((time.perf_counter() - began) * 1e6)
        return took

    def measure(self, clients: int) -> None:
        before = worked_ns(self.pids)
        took = self.ask(clients, REQUESTS)
        worked = (worked_ns(self.pids) - before) / REQUESTS / 1000
        self.turns[clients].append(Turn(statistics.quantiles(took, n=4)[0], worked))


def create(client: Client, name: str) -> None:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    response = client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 5)
    assert [each.error_code for each in response.topics] == [0], response


def pids(broker: RunningBroker) -> Collection[int]:
    return pids_by_name(broker).values()


def worked_ns(those: Iterable[int]) -> int:
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in those)


Figures = list[float]


def less(figures: Figures, others: Figures) -> Figures:
    """Return the differences to the same rounds of another kind."""
    return [each - other for each, other in zip(figures, others, strict=True)]


def spread(differences: Figures) -> str:
    low, middle, high = statistics.quantiles(differences, n=4)
    least, most = sure_of_median(differences)
    return f"{middle:+.1f} ({low:+.1f} to {high:+.1f}), sure: {least:+.1f} to {most:+.1f}"


def sure_of_median(figures: Figures) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median, for any distribution."""
    ordered, count = sorted(figures), len(figures)
    beyond = max(0, math.floor((count - 1.96 * math.sqrt(count)) / 2))
    return ordered[beyond], ordered[-1 - beyond]


def time_requests(rounds: int, brokers: int) -> None:
    with ExitStack() as stack:
        benches = {
            limited: [Bench(stack, limited=limited) for _ in range(brokers)]
            for limited in (False, True)
        }
        order = [
            (bench, clients)
            for both in zip(*benches.values(), strict=True)
            for clients in (FEW, MANY)
            for bench in both
        ]
        for _ in range(rounds):
            for bench, clients in order:
                bench.measure(clients)
            order.reverse()
    print(f"medians of {brokers} brokers of a kind, {rounds} rounds of {REQUESTS} requests, us")
    for name in Turn._fields:
        print_times(
            name.removesuffix("_us"),
            {
                (limited, clients): [
                    getattr(turn, name) for bench in same for turn in bench.turns[clients]
                ]
                for limited, same in benches.items()
                for clients in (FEW, MANY)
            },
        )


def print_times(what: str, found: Mapping[tuple[bool, int], Figures]) -> None:
    print(what)
    cost = {clients: less(found[True, clients], found[False, clients]) for clients in (FEW, MANY)}
    for clients in (FEW, MANY):
        without, limited = (statistics.median(found[each, clients]) for each in (False, True))
        line = f"{without:8.1f} without, {limited:8.1f} with all types: {spread(cost[clients])}"
        print(f"{clients:10,} clients {line}")
    print(f"  what {MANY:,} cost more than {FEW}")
    print(f"    without quotas     {spread(less(found[False, MANY], found[False, FEW]))}")
    print(f"    for quotas' sake   {spread(less(cost[MANY], cost[FEW]))}")


def time_counting() -> None:
    """Print the cost of recording one request."""
    quotas = ClientQuotaManager(QuotaLedger(11, 1000, shared=True))
    bounds = {kind: {Entity(DEFAULT, DEFAULT): BOUND} for kind in CLIENT_QUOTA_TYPES}
    quotas.set_table(QuotaTable(bounds, USER_AND_CLIENT))
    other_work = bytes(500_000)
    now_ms = 0.0
    took: dict[tuple[str, int], Figures] = {}
    # The first round creates counters. Ten clients at the pace of ten thousand separate code from
    # caches.
    for how, clients, every_ms in (
        ("", MANY, COUNTED_EVERY_MS),
        ("", FEW, COUNTED_EVERY_MS),
        ("that ask as seldom as ten thousand", FEW, COUNTED_EVERY_MS * MANY / FEW),
        ("", MANY, COUNTED_EVERY_MS),
    ):
        each = took[how, clients] = []
        for number in range(COUNTED):
            other_work.count(1)
            now_ms += every_ms
            who = "ANONYMOUS", "".join(("client-", str(number % clients)))
            began = time.perf_counter_ns()
            count(quotas, who, int(now_ms))
            each.append((time.perf_counter_ns() - began) / 1000)
    print("counting alone, in one process, in us: median, and what one in ten took less than")
    for (how, clients), each in took.items():
        least = statistics.quantiles(each, n=10)[0]
        print(f"{clients:10,} clients {statistics.median(each):8.1f} {least:8.1f} {how}")


def count(quotas: ClientQuotaManager, who: QuotaUser, now_ms: int) -> None:
    """Counts a request as a processor does."""
    defer = quotas.defer(BYTES_PRODUCED, who)
    if defer is not None and defer.start(200, 100_000, now_ms):
        defer.complete(50_000)
    else:
        quotas.record_bytes_and_time(BYTES_PRODUCED, who, 200, 100_000, now_ms)
        quotas.record_later_time(who, 50_000, now_ms)


def measure_memory(clients: int) -> None:
    """Print the memory of all processes, each shared page divided by its users."""
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
    return {name: pss_bytes(pid) for name, pid in pids_by_name(broker).items()}


def client_id(number: int) -> str:
    return f"client-{number}"


def use_all(dialled: Sequence[Client], clients: int) -> None:
    """Let every client use every type of quota, on each connection.

    Only some of them change topics, which takes long: a client's four counters are in one piece of
    memory, whether they are used or not.
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
    parser.add_argument("parts", nargs="*", choices=PARTS, help="all, if none is given")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--brokers", type=int, default=BROKERS, help="of each kind")
    parser.add_argument("--clients", type=int, default=MANY, help="whose memory is measured")
    given = parser.parse_args()
    parts = given.parts or PARTS
    if "requests" in parts:
        time_requests(given.rounds, given.brokers)
    if "counting" in parts:
        time_counting()
    if "memory" in parts:
        measure_memory(given.clients)


if __name__ == "__main__":
    main()
