"""One fixture, `client`, that runs each scenario once for every client library.

It owns which libraries there are and how long each lives (one per run, since a JVM is dear); the
scenarios never learn which they have been given, except through the flags of `model.Client`. The
invariant: a library that can't be had leaves its own runs out, with a reason, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from system_tests.clients.adapters.aio import AiokafkaClient
from system_tests.clients.adapters.confluent import ConfluentClient
from system_tests.clients.adapters.java import JavaClient
from system_tests.clients.adapters.pure import KafkaPythonClient
from system_tests.clients.model import Client
from system_tests.conftest import without_toolchain
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.jars import ToolchainMissing

CLIENTS: tuple[type[Client], ...] = (
    ConfluentClient,
    KafkaPythonClient,
    AiokafkaClient,
    JavaClient,
)
ClientOf = Callable[[type[Client]], Client]


@pytest.fixture(scope="session")
def client_of(broker: RunningBroker) -> Iterator[ClientOf]:
    """Give the one client of a kind; it is made at its first use."""
    made: dict[type[Client], Client] = {}

    def get(kind: type[Client]) -> Client:
        if kind not in made:
            try:
                made[kind] = kind(broker.bootstrap_servers)
            except ToolchainMissing as missing:
                without_toolchain(missing)
        return made[kind]

    yield get
    for client in made.values():
        client.close()


@pytest.fixture(
    params=[
        pytest.param(kind, id=kind.name, marks=[pytest.mark.java] if kind is JavaClient else [])
        for kind in CLIENTS
    ]
)
def client(request: pytest.FixtureRequest, client_of: ClientOf) -> Client:
    return client_of(request.param)
