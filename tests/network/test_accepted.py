"""What travels beside a connection."""

from __future__ import annotations

import pickle

from minibroker.network.accepted import SLOT_FREED, Accepted
from minibroker.runtime.handoff import PACKET_BYTES_MAX


def test_an_id_has_kafkas_form() -> None:
    accepted = Accepted("PLAINTEXT", ("127.0.0.1", 9092), ("10.0.0.7", 51234), 7)
    assert accepted.connection_id == "127.0.0.1:9092-10.0.0.7:51234-7"


def test_both_messages_fit_a_packet() -> None:
    address = ("f" * 45, 65535)
    for message in (SLOT_FREED, Accepted("L" * 255, address, address, 2**63)):
        packet = pickle.dumps(message, 5)
        assert len(packet) < PACKET_BYTES_MAX
        assert pickle.loads(packet) == message
