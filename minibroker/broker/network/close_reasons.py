"""Why a connection is closed after an error: the reason that is counted, and the text for the log.

Owns the table of errors and reasons. It must never close a connection or write to a log. Invariant:
every error has one reason; one that is not in the table is an internal error.
"""

from __future__ import annotations

from typing import Final

from minibroker.broker.apis.base import CloseConnection
from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.network.authenticator import ConnectionNotAuthenticated
from minibroker.broker.network.client_connection import InvalidRequestSize
from minibroker.broker.network.interception import InterceptorDisconnect
from minibroker.broker.network.response_sender import RecordsGone, RecordsUnreadable
from minibroker.runtime.rpc import PeerLost
from minibroker.runtime.stream import StreamClosed
from minibroker_protocol.errors import ProtocolError, UnsupportedVersion

AUTHENTICATION_FAILURES: Final = frozenset(
    {CloseReason.TLS_FAILED, CloseReason.AUTHENTICATION_FAILED, CloseReason.SESSION_EXPIRED}
)
_REASONS: Final[tuple[tuple[type[Exception], CloseReason], ...]] = (
    (StreamClosed, CloseReason.CLIENT_RESET),
    (UnsupportedVersion, CloseReason.UNSUPPORTED_VERSION),
    (ProtocolError, CloseReason.BAD_REQUEST),
    (CloseConnection, CloseReason.ACKS_ZERO_ERROR),
    (InterceptorDisconnect, CloseReason.FAULT_RULE),
    (RecordsGone, CloseReason.RECORDS_GONE),
    (RecordsUnreadable, CloseReason.RECORDS_UNREADABLE),
)
"""Errors and the reason that is counted; the first match applies."""


def leaf_error(error: BaseException) -> BaseException:
    """Return the first error of nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def close_reason(error: BaseException) -> tuple[CloseReason, str]:
    """Return the reason and the text of an error."""
    if isinstance(error, InvalidRequestSize | ConnectionNotAuthenticated):
        return error.reason, str(error)
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return reason, str(error)
    if isinstance(error, PeerLost):
        return CloseReason.PEER_LOST, "the process that executes the request died"
    return CloseReason.INTERNAL_ERROR, str(error)
