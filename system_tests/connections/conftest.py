"""A broker with limits for each test, and clients that are closed when it ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Protocol

import pytest

from system_tests.connections.dialling import Client
from system_tests.harness.brokers import RunningBroker, start_minibroker


def as_settings(layout: Mapping[str, str]) -> tuple[str, ...]:
    """Return a layout of processes as settings, ``name=value`` each."""
    return tuple(f"{name}={value}" for name, value in layout.items())


class Limited(Protocol):
    def __call__(self, *settings: str, listener: str = ...) -> RunningBroker: ...


class Dial(Protocol):
    def __call__(
        self, to: RunningBroker | tuple[str, int], count: int = 1, source: str = ...
    ) -> list[Client]: ...


@pytest.fixture
def limited() -> Iterator[Limited]:
    """Start a broker with these settings, ``name=value`` each."""
    running: list[RunningBroker] = []
    with ExitStack() as started:

        def start(*settings: str, listener: str = "PLAINTEXT://127.0.0.1:0") -> RunningBroker:
            pairs = dict(pair.split("=", 1) for pair in settings)
            running.append(start_minibroker(settings=pairs, listener=listener))
            return started.enter_context(running[-1])

        yield start
        assert [broker.stop() for broker in running] == [0] * len(running)


@pytest.fixture
def dial(limited: Limited) -> Iterator[Dial]:
    """Make connections, which end before the broker does."""
    with ExitStack() as opened:

        def connect(
            to: RunningBroker | tuple[str, int], count: int = 1, source: str = "127.0.0.1"
        ) -> list[Client]:
            address = to.address if isinstance(to, RunningBroker) else to
            return [opened.enter_context(Client(address, source)) for _ in range(count)]

        yield connect
