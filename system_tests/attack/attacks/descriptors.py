"""More connections and partitions than a broker with few descriptors can have open.

Owns the sockets and topics of the attack. The invariant: between two waves of connections there is
a moment without any, so that the broker can be seen to recover while the attack goes on.
"""

from __future__ import annotations

import random
import socket
import time
from collections import Counter
from contextlib import ExitStack, suppress
from typing import Final

from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from minibroker_protocol.records import Record, build_batch
from system_tests.attack.targets import Target
from system_tests.connections.dialling import Client
from system_tests.faults.hostile import api_versions_request
from system_tests.peers.records import produce

WAVE: Final = 1500
PARTITIONS: Final = 120
HELD_S: Final = (0.5, 3.0)
PAUSE_S: Final = 1.0
CLIENT_TIMEOUT_S: Final = 20.0
TIMEOUT_MS: Final = 10_000


def attack(target: Target, seed: str, deadline: float) -> Counter[str]:
    """Send waves of connections, and requests to many partitions, until the deadline."""
    dice = random.Random(seed)
    counts: Counter[str] = Counter()
    while time.monotonic() < deadline:
        with suppress(OSError, AssertionError, IndexError):
            _wave_over_partitions(target, dice, counts, deadline)
        counts["waves of connections"] += 1
        _wait(min(deadline, time.monotonic() + PAUSE_S))
    return counts


def _wave_over_partitions(
    target: Target, dice: random.Random, counts: Counter[str], deadline: float
) -> None:
    """Use many partitions while a wave of connections is held, over a connection from before."""
    with Client(target.address, client_id="hostile") as client, ExitStack() as held:
        client.socket.settimeout(CLIENT_TIMEOUT_S)
        name = f"wide-{dice.randrange(10**9)}"
        client.ask(_create(name), 5)
        for stream in _wave(target, dice, counts, deadline):
            held.callback(stream.close)
        batch = build_batch([Record(value=b"v")])
        for partition in range(PARTITIONS):
            client.ask(produce(name, batch, partition), 9)
            counts["partitions used"] += 1
        _wait(min(deadline, time.monotonic() + dice.uniform(*HELD_S)))
        client.ask(_delete(name), 6)


def _create(name: str) -> CreateTopicsRequest:
    topic = CreatableTopic(name=name, num_partitions=PARTITIONS, replication_factor=1)
    return CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)


def _delete(name: str) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name)], topic_names=[name], timeout_ms=TIMEOUT_MS
    )


def _wait(until: float) -> None:
    time.sleep(max(0.0, until - time.monotonic()))


def _wave(
    target: Target, dice: random.Random, counts: Counter[str], deadline: float
) -> list[socket.socket]:
    streams = []
    for _ in range(WAVE):
        if time.monotonic() > deadline:
            break
        stream = socket.socket()
        stream.settimeout(0.2)
        try:
            stream.bind((f"127.0.0.{dice.randrange(1, 50)}", 0))
            stream.connect(target.address)
            if dice.random() < 0.5:
                stream.sendall(api_versions_request())
        except OSError:
            counts["hostile connections refused"] += 1
            stream.close()
        else:
            counts["connections of waves"] += 1
            streams.append(stream)
    return streams
