"""The verifiable producer and consumers while nothing happens, on any broker, Kafka included."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from system_tests.faults.history import find_anomalies
from system_tests.faults.verifiable import Run
from system_tests.harness.brokers import RunningBroker


@pytest.mark.parametrize("idempotent", [True, False])
def test_quiet_run_reports_no_problem(
    idempotent: bool, broker: RunningBroker, begin_run: Callable[..., Run]
) -> None:
    run = begin_run(broker, idempotent=idempotent)
    run.wait_progress()
    history = run.finish()
    assert not history.failed
    assert set(history.acknowledged) == history.sent
    assert not find_anomalies(history)
