"""Rate of accepted connections with and without limits, and the effect of a connection storm.

Owns the brokers for this (every limit set but none exceeded in one kind, all exceeded in the other)
and their measures. Invariant: a cost is a ratio of two rates measured one right after the other,
and the storm uses only processor time that no other process wants, so that a slowdown beside it is
caused by the broker.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from system_tests.benchmarks.client import RunFailed, paced
from system_tests.benchmarks.peers import KAFKA, MINIBROKER
from system_tests.connections.dialling import Client, set_ip_rate
from system_tests.harness.brokers import KAFKA_JVM, RunningBroker, start_kafka, start_minibroker
from system_tests.harness.dialler import count, storm
from system_tests.harness.jars import PROJECT

IpRates = Mapping[str | None, float]

CONNECTIONS: Final = 6000
AT_ONCE: Final = 32
ADDRESSES: Final = 64
SHARDED: Final = {"acceptor.mode": "sharded"}
REDPANDA: Final = "kafka_connections_"

GENEROUS: Final = {
    "max.connections": "10000",
    "listener.name.plaintext.max.connections": "9000",
    "max.connections.per.ip": "5000",
    "max.connections.per.ip.overrides": "127.0.1.1:4000",
    "max.connection.creation.rate": "1000000",
    "listener.name.plaintext.max.connection.creation.rate": "900000",
    "kafka_connections_max": "9500",
    "kafka_connections_max_per_ip": "4500",
    "kafka_connections_max_overrides": "127.0.1.2:4400",
}
GENEROUS_IPS: Final[IpRates] = {None: 100_000.0, "127.0.1.3": 90_000.0}

TIGHT: Final = {
    "max.connections": "200",
    "listener.name.plaintext.max.connections": "150",
    "max.connections.per.ip": "4",
    "max.connections.per.ip.overrides": "127.0.0.1:50,127.0.1.1:2",
    "max.connection.creation.rate": "400",
    "listener.name.plaintext.max.connection.creation.rate": "300",
    "kafka_connections_max": "140",
    "kafka_connections_max_per_ip": "5",
    "kafka_connections_max_overrides": "127.0.0.1:50",
}
TIGHT_IPS: Final[IpRates] = {None: 20.0, "127.0.0.1": 1000.0}

Limits = tuple[Mapping[str, str], IpRates]
"""Settings, and rates of addresses, which are no settings."""

NONE: Final[Limits] = ({}, {})
ALL_GENEROUS: Final[Limits] = (GENEROUS, GENEROUS_IPS)
ALL_TIGHT: Final[Limits] = (TIGHT, TIGHT_IPS)

STORM_MS: Final = 60_000
"""Longer than any measure beside it; the measure ends the storm."""
STORMING_AT_ONCE: Final = 256
STORMING_ADDRESSES: Final = 100
HOLD_MS: Final = 200
PATIENCE_MS: Final = 500
STORM_START_S: Final = 0.5
PRODUCED: Final = 5000
"""Ten seconds of them, as with fewer one moment of the machine's own is the slowest hundredth."""
RECORD_BYTES: Final = 100
PAUSE_US: Final = 2000
TOPIC: Final = "storm"

PLAIN: Final = "connections, with one request each"
LIMITED: Final = "same, with all limits set"
COST: Final = "what all limits cost of it"
ALONE: Final = "one record each 2 ms, p99"
BESIDE: Final = "same, beside a storm of connections"
RATIO: Final = "storm's p99 to that without"


def sharded(row: str) -> str:
    """The name of a row for `acceptor.mode=sharded`."""
    return f"{row}, sharded"


ADDRESSES_KEPT: Final = "100,000 addresses with rates and counts"
ADDRESSES_GONE: Final = "same, an hour after their last connection"


@dataclass(frozen=True)
class Kind:
    """One way to run one peer."""

    peer: str
    sharded: bool

    def row(self, name: str) -> str:
        return sharded(name) if self.sharded else name

    def start(self, folder: Path, limits: Limits) -> RunningBroker:
        """Start it with the limits that it has:

        Kafka all but Redpanda's, the sharded mode only those.
        """
        settings, ips = limits
        redpandas = {name: limit for name, limit in settings.items() if REDPANDA in name}
        if self.peer == KAFKA:
            kafkas = {name: settings[name] for name in settings if name not in redpandas}
            broker = start_kafka(folder, settings=kafkas, jvm=KAFKA_JVM)
        elif self.sharded:
            broker = start_minibroker(data_dir=folder, settings={**redpandas, **SHARDED})
        else:
            broker = start_minibroker(data_dir=folder, settings=settings)
        if ips and not self.sharded:
            with Client(broker.address) as client:
                for ip, rate in ips.items():
                    set_ip_rate(client, ip, rate)
        return broker


KINDS: Final = (Kind(MINIBROKER, False), Kind(MINIBROKER, True), Kind(KAFKA, False))


def accept_rate(broker: RunningBroker) -> float:
    """Connections a second, each with a request and its answer, many at a time."""
    seen = count(broker.bootstrap_servers, CONNECTIONS, at_once=AT_ONCE, addresses=ADDRESSES)
    return seen.served / seen.seconds


def cost_of_limits(
    kind: Kind, plain: RunningBroker, limited: RunningBroker, *, limited_first: bool
) -> dict[str, float]:
    """Return both rates, and the share that the limits take of the rate without limits, in per
    cent.
    """
    if limited_first:
        with_limits, without = accept_rate(limited), accept_rate(plain)
    else:
        without, with_limits = accept_rate(plain), accept_rate(limited)
    return {
        kind.row(PLAIN): without,
        kind.row(LIMITED): with_limits,
        kind.row(COST): (1 - with_limits / without) * 100,
    }


def addresses_memory() -> dict[str, float]:
    """The memory of a hundred thousand addresses, in a process that does nothing else."""
    command = [sys.executable, "-m", "system_tests.benchmarks.addresses"]
    done = subprocess.run(
        command, check=False, cwd=PROJECT, capture_output=True, text=True, timeout=800
    )
    if done.returncode != 0:
        raise RunFailed(f"addresses: {done.stderr[-500:]}")
    figures = json.loads(done.stdout)
    return {ADDRESSES_KEPT: figures["there"], ADDRESSES_GONE: figures["gone"]}


def storm_beside(kind: Kind, broker: RunningBroker) -> dict[str, float]:
    """What producing takes a client without a storm, then with one that runs into every limit."""
    servers = broker.bootstrap_servers
    with paced(servers, TOPIC, PRODUCED, RECORD_BYTES, PAUSE_US) as client:
        alone = client.produce()["p99_us"]
        with storm(
            servers,
            STORM_MS,
            at_once=STORMING_AT_ONCE,
            addresses=STORMING_ADDRESSES,
            hold_ms=HOLD_MS,
            patience_ms=PATIENCE_MS,
            nice=True,
        ) as storming:
            time.sleep(STORM_START_S)
            beside = client.produce()["p99_us"]
            storming.end()
    return {kind.row(ALONE): alone, kind.row(BESIDE): beside, kind.row(RATIO): beside / alone}
