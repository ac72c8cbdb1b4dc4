"""Reasons and texts of errors that close a connection."""

from __future__ import annotations

import pytest

from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.network.authenticator import ConnectionNotAuthenticated
from minibroker.broker.network.client_connection import InvalidRequestSize
from minibroker.broker.roles.processor import close_reason, leaf_error
from minibroker.runtime.rpc import PeerFailed, PeerLost
from minibroker.runtime.stream import StreamClosed
from minibroker_protocol.errors import ProtocolError, UnsupportedVersion


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StreamClosed("reset"), CloseReason.CLIENT_RESET),
        (UnsupportedVersion("version 99"), CloseReason.UNSUPPORTED_VERSION),
        (ProtocolError("no string"), CloseReason.BAD_REQUEST),
        (InvalidRequestSize(CloseReason.FRAME_TOO_LARGE, "large"), CloseReason.FRAME_TOO_LARGE),
        (ConnectionNotAuthenticated(CloseReason.TLS_FAILED, "TLS"), CloseReason.TLS_FAILED),
        (PeerFailed("at the worker"), CloseReason.INTERNAL_ERROR),
        (ValueError("bug"), CloseReason.INTERNAL_ERROR),
    ],
    ids=repr,
)
def test_error_has_one_reason_and_its_own_text(error: Exception, reason: CloseReason) -> None:
    assert close_reason(error) == (reason, str(error))


def test_lost_peer_is_described_to_who_does_not_know_processes() -> None:
    reason, text = close_reason(PeerLost("worker-0"))
    assert (reason, text) == (CloseReason.PEER_LOST, "the process that executes the request died")


def test_first_error_of_nested_groups_counts() -> None:
    first = StreamClosed("reset")
    group = ExceptionGroup("outer", [ExceptionGroup("inner", [first]), ValueError("later")])
    assert leaf_error(group) is first
    assert leaf_error(first) is first
