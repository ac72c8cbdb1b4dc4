"""Brokers that a test may kill, and that are gone when it ends, however it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from system_tests.faults.verifiable import Run
from system_tests.harness.brokers import RunningBroker, free_port, start_minibroker
from system_tests.harness.processes import is_running, tree
from system_tests.harness.waiting import wait_until


class Starter(Protocol):
    def __call__(
        self,
        *arguments: str,
        data_dir: Path | None = None,
        listener: str = ...,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        wrapper: Sequence[str] = (),
    ) -> RunningBroker: ...


def end_for_good(running: RunningBroker, family: list[int]) -> None:
    """Stop a broker and wait until nothing of it runs."""
    try:
        if running.process.poll() is None:
            running.stop()
    finally:
        running.forget()
    wait_until(lambda: not still_running(family), "the broker's processes to be gone")


def still_running(family: list[int]) -> list[int]:
    return [pid for pid in family if is_running(pid)]


@pytest.fixture
def start() -> Iterator[Starter]:
    """Start a broker of the test's own, which is stopped at the end if the test has not."""
    started: list[RunningBroker] = []

    def begin(
        *arguments: str,
        data_dir: Path | None = None,
        listener: str = "PLAINTEXT://127.0.0.1:0",
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        wrapper: Sequence[str] = (),
    ) -> RunningBroker:
        broker = start_minibroker(
            *arguments,
            data_dir=data_dir,
            listener=listener,
            settings=settings,
            environment=environment,
            wrapper=wrapper,
        )
        started.append(broker)
        return broker

    yield begin
    for running in started:
        end_for_good(running, tree(running.pid))


@pytest.fixture
def fixed_listener() -> str:
    """Return a listener on a port that stays the same over restarts."""
    return f"PLAINTEXT://127.0.0.1:{free_port()}"


@pytest.fixture
def begin_run(fresh: Callable[[str], str]) -> Iterator[Callable[..., Run]]:
    """Start a producer and consumers; those left by a failing test are stopped."""
    runs: list[Run] = []

    def begin(running: RunningBroker, *, idempotent: bool = True) -> Run:
        runs.append(Run(running.bootstrap_servers, fresh("verified"), idempotent=idempotent))
        return runs[-1]

    yield begin
    for run in runs:
        run.abandon()
