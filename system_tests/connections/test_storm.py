"""Limits under a storm of connections, while the broker's processes are killed in turn."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

from system_tests.connections.conftest import Limited, as_settings
from system_tests.connections.dialling import Client, counted, gauge, wait_counted
from system_tests.faults.killing import COMBINED, SEPARATE
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.control import kill_process
from system_tests.harness.processes import open_files, tree
from system_tests.harness.waiting import wait_until

pytestmark = [pytest.mark.minibroker, pytest.mark.slow, pytest.mark.alone]

TOTAL, PER_IP, DROP = 12, 2, 13
SETTINGS = (
    *as_settings(SEPARATE),
    f"max.connections={TOTAL}",
    f"max.connections.per.ip={PER_IP}",
    f"kafka_connections_max={DROP}",
)
THREADS = 4
CLIENT_TIMEOUT_S = 0.05
VICTIMS = ("acceptor", "processor-0", "worker-0", "processor-1", "controller", "acceptor")
SHARDED = (
    "acceptor.mode=sharded",
    *as_settings(COMBINED),
    "num.network.threads=3",
    f"kafka_connections_max={TOTAL}",
    f"kafka_connections_max_per_ip={PER_IP}",
)
SHARDED_VICTIMS = ("processor-0", "worker-0", "processor-1", "controller", "processor-2")
SEED = 612


class Storm:
    """Clients that come as fast as they can, stay for a while or not, and go."""

    def __init__(self, broker: RunningBroker) -> None:
        self.address = broker.address
        self.served = 0
        self.stopping = threading.Event()

    def wait_served(self, count: int) -> None:
        served_min = self.served + count
        wait_until(lambda: self.served >= served_min, f"{count} more connections to be served")

    def connect_repeatedly(self, seed: int) -> None:
        random = Random(seed)
        open_now: list[Client] = []
        while not self.stopping.is_set():
            try:
                client = Client(self.address, f"127.0.1.{random.randrange(1, 16)}")
                client.socket.settimeout(CLIENT_TIMEOUT_S)
                open_now.append(client)
                self.served += client.answered()
            except OSError:
                pass  # rejected, waiting, or the process died: all the same to a storm
            while len(open_now) > random.randrange(6):
                open_now.pop(random.randrange(len(open_now))).close()
        for client in open_now:
            client.close()


@contextmanager
def storm(broker: RunningBroker) -> Iterator[Storm]:
    storm_clients = Storm(broker)
    threads = [
        threading.Thread(target=storm_clients.connect_repeatedly, args=[SEED + n])
        for n in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield storm_clients
    finally:
        storm_clients.stopping.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    ("settings", "victims"),
    [(SETTINGS, VICTIMS), (SHARDED, SHARDED_VICTIMS)],
    ids=["single", "sharded"],
)
def test_process_kill_in_storm_exceeds_no_limit_and_leaks_nothing(
    limited: Limited, settings: tuple[str, ...], victims: tuple[str, ...]
) -> None:
    broker = limited(*settings)
    files = sum(map(open_files, tree(broker.pid)))
    with storm(broker) as storm_clients:
        for name in victims:
            storm_clients.wait_served(50)
            assert counted(broker) <= TOTAL
            assert gauge(broker, "minibroker_connections_open") <= TOTAL
            kill_process(broker, name)
    wait_counted(broker, 0)
    # A process that was started again may hold one or two more; a leak would show by hundreds.
    files_max = files + 2 * len(victims)
    wait_until(
        lambda: sum(map(open_files, tree(broker.pid))) <= files_max, "no descriptor to be left open"
    )
    with Client(broker.address) as client:
        assert client.answered()
