from __future__ import annotations

from collections.abc import Iterator

import pytest

from system_tests.harness.brokers import RunningBroker, start_minibroker
from system_tests.histories.torn_transaction import finalized_version, set_version, tear


@pytest.fixture
def version_1() -> Iterator[RunningBroker]:
    """A broker of its own, since the version is one for all clients."""
    with start_minibroker() as lowered:
        set_version(lowered.address, 1)
        yield lowered


@pytest.mark.minibroker
def test_delayed_end_of_a_transaction_tears_the_next_one_at_version_1(
    version_1: RunningBroker,
) -> None:
    report = tear(version_1.address, 1)
    assert report.anomalies == {"aborted-read": 1}, report


def test_delayed_end_of_a_transaction_is_rejected_at_version_2(broker: RunningBroker) -> None:
    assert finalized_version(broker.address) == 2
    report = tear(broker.address, 2)
    assert report.valid, report
    assert report.polled == 1
