"""Messages between acceptor and processor fit into one packet."""

from __future__ import annotations

import pickle

from minibroker.broker.admission.acceptor_messages import (
    CLOSED_MAX,
    LEAST_RECENTLY_USED_MAX,
    PROCESSOR_CONNECTIONS_MAX,
    AcceptedConnection,
    CloseConnections,
    ConnectionsClosed,
    LeastRecentlyUsed,
    LeastRecentlyUsedRequest,
    OpenConnection,
    ProcessorConnections,
)
from minibroker.broker.connections.counts import LastUse
from minibroker.runtime.handoff import PACKET_BYTES_MAX


def test_id_has_kafkas_form() -> None:
    accepted = AcceptedConnection("PLAINTEXT", ("127.0.0.1", 9092), ("10.0.0.7", 51234), 7)
    assert accepted.connection_id == "127.0.0.1:9092-10.0.0.7:51234-7"


def test_all_messages_fit_a_packet() -> None:
    address = ("f" * 45, 65535)
    numbers = range(2**62, 2**62 + LEAST_RECENTLY_USED_MAX)
    for message in (
        AcceptedConnection("L" * 255, address, address, 2**63),
        ProcessorConnections(
            # Distinct texts: pickle writes an identical object only once.
            tuple(
                OpenConnection(n, f"{n:0>255}", f"{n:f>45}")
                for n in numbers[:PROCESSOR_CONNECTIONS_MAX]
            ),
            more=True,
        ),
        ConnectionsClosed(2**31, tuple(range(2**62, 2**62 + CLOSED_MAX))),
        LeastRecentlyUsedRequest(LEAST_RECENTLY_USED_MAX, "L" * 255),
        LeastRecentlyUsed(tuple(LastUse(n / 3, n) for n in numbers)),
        CloseConnections(tuple(numbers), 2**31 - 1),
    ):
        packet = pickle.dumps(message, 5)
        assert len(packet) < PACKET_BYTES_MAX
        assert pickle.loads(packet) == message
