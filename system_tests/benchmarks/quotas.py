"""What quotas cost: ``python -m system_tests.benchmarks.quotas``.

Three brokers, with no quota, with all types of quotas for ten clients, and for ten thousand, take
the same Produce requests in turns over one connection each. Prints medians over the rounds, in
microseconds a request: latency as the client sees it, and the processor time of all the broker's
processes, which other work on the machine disturbs less; and what the shared ledger takes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

from protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.records import Record, build_batch
from system_tests.connections.dialling import Client
from system_tests.harness.brokers import RunningBroker, start_minibroker
from system_tests.harness.control import processes
from system_tests.quotas.setting import VERSION, set_quota

ROUNDS, REQUESTS = 15, 2_000
FEW, MANY = 10, 10_000
BOUND = 10.0**12
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


class Bench:
    """One broker, a connection to it, and the client-ids that it uses."""

    def __init__(self, stack: ExitStack, clients: int, *, limited: bool) -> None:
        self.broker = start_minibroker()
        stack.callback(self.broker.forget)
        stack.callback(self.broker.stop)
        self.clients = clients
        self.client = stack.enter_context(Client(self.broker.address))
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        self.client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 5)
        if limited:
            rates = dict.fromkeys(("producer_byte_rate", "consumer_byte_rate"), BOUND)
            set_quota(
                self.client,
                {"user": None, "client-id": None},
                **rates,
                request_percentage=BOUND,
                controller_mutation_rate=BOUND,
            )
        self.latency_us: list[float] = []
        self.worked_us: list[float] = []
        self.ask(clients)  # so that every counter is there

    def ask(self, count: int) -> list[float]:
        """Sends so many requests, each client-id in turn; the time of each."""
        took = []
        for number in range(count):
            self.client.client_id = f"client-{number % self.clients}"
            began = time.perf_counter()
            self.client.ask(PRODUCE, VERSION)
            took.append((time.perf_counter() - began) * 1e6)
        return took

    def measure(self) -> None:
        before = worked_ns(self.broker)
        took = self.ask(REQUESTS)
        self.latency_us.append(statistics.median(took))
        self.worked_us.append((worked_ns(self.broker) - before) / REQUESTS / 1000)


def pids(broker: RunningBroker) -> list[int]:
    return [each.pid for each in processes(broker).values() if each.pid is not None]


def worked_ns(broker: RunningBroker) -> int:
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids(broker))


def ledger_kb(broker: RunningBroker) -> int:
    """What of the shared mapping is in memory, in the process that touched most of it."""
    return max(_mapped_kb(pid) for pid in pids(broker))


def _mapped_kb(pid: int) -> int:
    found, inside = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = "minibroker-quotas" in line
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="What quotas cost.")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    with ExitStack() as stack:
        benches = {
            "no quota": Bench(stack, FEW, limited=False),
            f"all types, {FEW} entities": Bench(stack, FEW, limited=True),
            f"all types, {MANY:,} entities": Bench(stack, MANY, limited=True),
        }
        for _ in range(rounds):
            for bench in benches.values():
                bench.measure()
        print(f"median of {rounds} rounds of {REQUESTS} requests, microseconds a request")
        print(f"{'latency':>10}{'worked':>10}{'ledger kB':>12}")
        for name, bench in benches.items():
            latency, worked = map(statistics.median, (bench.latency_us, bench.worked_us))
            print(f"{latency:10.1f}{worked:10.1f}{ledger_kb(bench.broker):12}  {name}")


if __name__ == "__main__":
    main()
