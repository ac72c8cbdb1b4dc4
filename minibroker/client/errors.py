"""Errors of the Kafka client.

Owns one class for each cause, so that callers can choose a reaction or an exit code. It must never
name a command. Invariant: a message says what failed, at which broker or for which resource, and
why. Kafka's clients have ``org.apache.kafka.common.errors``.
"""

from __future__ import annotations

from enum import Enum, auto

from minibroker_protocol.errors import ErrorCode


class Remedy(Enum):
    """A change by the user that makes a broker reachable."""

    START_BROKER = auto()
    """Nothing listens on the address."""
    CORRECT_ADVERTISED_ADDRESS = auto()
    """A broker names an address in its metadata that the client cannot connect to."""
    CONFIGURE_SECURITY = auto()
    """The listener may require TLS or SASL, for which the client is not configured."""


class ClientError(Exception):
    """Base of all errors of this package."""


class InvalidArgument(ClientError):
    """An argument that cannot be parsed or encoded, or a partition that does not exist."""


class InvalidClientConfig(ClientError):
    """A client properties file, or a file that it names, is invalid."""


class ApiNotSupported(ClientError):
    """The broker does not support an API, or no version of it that this client supports."""


class BrokerUnreachable(ClientError):
    """No Kafka broker answers at the address.

    The message names no command or option; callers add how to apply the ``remedy``.
    """

    def __init__(self, message: str = "", remedy: Remedy | None = None) -> None:
        self.remedy = remedy
        super().__init__(message)


class NotConnected(BrokerUnreachable):
    """No connection can be made to the address."""


class ConnectionDropped(BrokerUnreachable):
    """The broker closed a connection that it had accepted."""


class ServerNotVerified(Exception):
    """The server did not prove that it knows the password; the message says why."""


class BrokerError(ClientError):
    """The broker answered with an error code."""

    def __init__(self, what: str, code: int, message: str | None = None) -> None:
        self.code = ErrorCode(code)
        reason = f"{self.code.name}: {message}" if message else self.code.name
        super().__init__(f"{what}: {reason}")


def check(what: str, code: int, message: str | None = None) -> None:
    """Raise `BrokerError` unless ``code`` is 0."""
    if code:
        raise BrokerError(what, code, message)
