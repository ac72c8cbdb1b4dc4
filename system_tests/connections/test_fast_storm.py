"""Limits during a storm as fast as one process in C can make it, for ten seconds and with kills.

The oracles are outside: the storm program counts a connection as open from its response until just
before it closes it, so its largest count cannot be above the broker's at that moment; and the
number that each rate admits is calculated by a model that shares no code with the broker.
"""

from __future__ import annotations

from itertools import accumulate

import pytest

from system_tests.connections.conftest import Dial, Limited, as_settings
from system_tests.connections.dialling import Client, counted, set_ip_rate, wait_counted
from system_tests.faults.killing import SEPARATE
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.control import kill_process, processes
from system_tests.harness.dialler import Seen, storm
from system_tests.harness.processes import open_files, pss_bytes, tree
from system_tests.harness.waiting import wait_until
from tests.simulation.rate_model import one_after_the_other

pytestmark = [pytest.mark.minibroker, pytest.mark.slow, pytest.mark.alone]

STORM_MS = 10_000
SHORT_MS = 3_000
MINUTES_MS = 120_000
AT_ONCE, ADDRESSES = 256, 12
HOLD_MS, PATIENCE_MS = 50, 300
PATIENCE_FACTORS = (1, 4, 16, 64)
"""Factors by which clients stay and wait longer in further storms, if a broker that gets only part
of the machine accepted too few of them.
"""
CONNECTIONS_MAX, PER_IP_MAX = 40, 4
SINGLE = (
    *as_settings(SEPARATE),
    f"max.connections={CONNECTIONS_MAX + 5}",
    f"listener.name.plaintext.max.connections={CONNECTIONS_MAX}",
    f"max.connections.per.ip={PER_IP_MAX}",
    "max.connections.per.ip.overrides=127.0.1.1:2",
    f"kafka_connections_max={CONNECTIONS_MAX + 10}",
    f"kafka_connections_max_per_ip={PER_IP_MAX + 1}",
    "kafka_connections_max_overrides=127.0.1.2:3",
)
SHARDED = (
    *as_settings(SEPARATE),
    "acceptor.mode=sharded",
    f"kafka_connections_max={CONNECTIONS_MAX}",
    f"kafka_connections_max_per_ip={PER_IP_MAX}",
    "kafka_connections_max_overrides=127.0.1.2:3",
)
ONE_PROCESS = (*SINGLE, "process.mode=combined", "num.network.threads=1", "num.io.threads=1")
MODES = pytest.mark.parametrize(
    "settings", [SINGLE, SHARDED, ONE_PROCESS], ids=["single", "sharded", "one-process"]
)
VICTIMS = ("processor-0", "acceptor", "worker-0", "controller", "processor-1", "worker-1")
GROWTH_BYTES_MAX = 4_000_000
"""Of all processes together over two storms, when one has been before: they are some 70 MB."""

RATE, BROKER_RATE, IP_RATE = 40, 60, 1000


def run_storm(broker: RunningBroker, for_ms: int, patience: int = 1) -> Seen:
    with storm(
        broker.bootstrap_servers,
        max(for_ms, 10 * HOLD_MS * patience),  # long enough for later connections
        at_once=AT_ONCE,
        addresses=ADDRESSES,
        hold_ms=HOLD_MS * patience,
        patience_ms=PATIENCE_MS * patience,
    ) as running_storm:
        return running_storm.wait()


def storm_until_full(broker: RunningBroker, for_ms: int) -> None:
    """Storm until the limits were reached, and never exceeded, slower where the machine is."""
    results: list[Seen] = []
    for patience in PATIENCE_FACTORS:
        result = run_storm(broker, for_ms, patience)
        results.append(result)
        assert result.open_most <= CONNECTIONS_MAX
        assert result.open_most_of_address <= PER_IP_MAX
        assert result.lost == 0, "a served connection was closed"
        wait_counted(broker, 0)
        reached = (result.open_most, result.open_most_of_address) == (CONNECTIONS_MAX, PER_IP_MAX)
        if reached and result.served > CONNECTIONS_MAX:
            return
    raise AssertionError(f"the limits were never reached: {results}")


def files_and_memory(broker: RunningBroker) -> tuple[int, int]:
    """Descriptors and memory of all of a broker's processes."""
    pids = tree(broker.pid)
    return sum(map(open_files, pids)), sum(map(pss_bytes, pids))


@MODES
def test_counts_are_exact_and_memory_is_constant(
    settings: tuple[str, ...], limited: Limited
) -> None:
    broker = limited(*settings)
    for for_ms in (STORM_MS, SHORT_MS):
        storm_until_full(broker, for_ms)
    files, memory = files_and_memory(broker)
    for _ in range(2):
        run_storm(broker, SHORT_MS)
        wait_counted(broker, 0)
    wait_until(lambda: files_and_memory(broker)[0] <= files, "no descriptor to be left open")
    assert files_and_memory(broker)[1] - memory <= GROWTH_BYTES_MAX


def test_rates_match_the_model_within_one_percent(limited: Limited) -> None:
    broker = limited(
        f"max.connection.creation.rate={BROKER_RATE}",
        f"listener.name.plaintext.max.connection.creation.rate={RATE}",
        "max.connections=1000",
    )
    set_ip_rate_and_kill_acceptor(broker)
    with storm(
        broker.bootstrap_servers,
        STORM_MS,
        at_once=AT_ONCE,
        addresses=ADDRESSES,
        hold_ms=0,
        patience_ms=2 * STORM_MS,
    ) as running_storm:
        result = running_storm.wait()
    expected = one_after_the_other([RATE, BROKER_RATE], STORM_MS)
    assert result.served == pytest.approx(len(expected), rel=0.01)
    # No connection was accepted early, neither in the first burst nor later.
    for number, served in enumerate(accumulate(result.spans), 1):
        until_ms = number * result.span_ms
        assert served <= 1.01 * sum(at <= until_ms for at in expected) + 1


def set_ip_rate_and_kill_acceptor(broker: RunningBroker) -> None:
    """Set a limit that needs a connection, and kill the process that counted it."""
    with Client(broker.address) as client:
        set_ip_rate(client, None, IP_RATE)
    kill_process(broker, "acceptor")


@MODES
def test_counts_are_exact_after_any_kill(
    settings: tuple[str, ...], limited: Limited, dial: Dial
) -> None:
    broker = limited(*settings)
    with storm(
        broker.bootstrap_servers,
        MINUTES_MS,
        at_once=AT_ONCE,
        addresses=ADDRESSES,
        hold_ms=HOLD_MS,
        patience_ms=PATIENCE_MS * max(PATIENCE_FACTORS),
    ) as running_storm:
        for name in VICTIMS:
            if name in processes(broker):
                kill_process(broker, name)
                assert counted(broker) <= CONNECTIONS_MAX
        result = running_storm.end()
    assert result.served > CONNECTIONS_MAX
    wait_counted(broker, 0)
    clients: list[Client] = []

    def all_are_accepted() -> bool:
        # Connections of the storm that were not accepted when it ended occupy places for a moment.
        for client in clients:
            client.close()
        clients[:] = [
            dial(broker, 1, f"127.0.2.{number}")[0] for number in range(1, CONNECTIONS_MAX + 1)
        ]
        return all(client.answered() for client in clients)

    # Free slots are known too: exactly as many are admitted as allowed.
    wait_until(all_are_accepted, f"{CONNECTIONS_MAX} connections to come in at once")
    assert counted(broker) == CONNECTIONS_MAX
    for client in clients:
        client.close()
    wait_counted(broker, 0)
