"""The cost of a request: each nanosecond of work is recorded once."""

from __future__ import annotations

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.network.client_connection import ClientConnection
from minibroker.broker.network.request_cost import RequestCost

NS = st.integers(min_value=0, max_value=10**12)


class Connection:
    """The work of a connection, as far as a cost needs it."""

    def __init__(self, accounted_ns: int) -> None:
        self.accounted_ns = accounted_ns


@given(accounted=NS, reading=NS, executing=NS, io=NS, sending=NS)
def test_work_before_and_after_the_check_adds_up_to_all_work(
    accounted: int, reading: int, executing: int, io: int, sending: int
) -> None:
    client = cast("ClientConnection", Connection(accounted))
    received = accounted + reading
    cost = RequestCost(client, 10, 0, received)
    cost.io_ns = io
    cost.executed(received + executing)
    cost.sent(received + executing + sending, 7)
    assert cost.worked_ns == executing + io
    assert cost.late_ns == reading + sending
    assert cost.network_ns == executing + sending


@given(owners=NS, io=NS)
def test_queue_time_is_the_wait_for_owners_without_their_work(owners: int, io: int) -> None:
    cost = RequestCost(cast("ClientConnection", Connection(0)), 10, 0, 0)
    cost.owners_ns, cost.io_ns = owners, io
    assert cost.queue_ns == max(owners - io, 0)


def test_time_of_a_failed_request_ends_when_the_connection_is_closed() -> None:
    cost = RequestCost(cast("ClientConnection", Connection(0)), 10, 100, 0)
    cost.failed(175)
    assert cost.total_ns == 75
    assert cost.network_ns == 0
