"""How a command finds and calls a broker's control API.

Owns the option ``--control``, the lookup of the API's address, and the errors of an unreachable
broker. It must never know the meaning of a response. Invariant: the errors distinguish a broker
that stopped from one that was never reached. Kafka's tools use JMX and need its address.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Callable, Iterator
from http.client import HTTPException
from typing import Any, ClassVar, Final, TypeAlias

import click

from minibroker.broker.settings.setting import BadValueError, HostPort, parse_host_port
from minibroker.cli.access import bootstrap_option
from minibroker.cli.output import CliError, InvalidUsage, Unreachable, error_message
from minibroker.client.connection import BootstrapServers, parse_bootstrap
from minibroker.client.control import Control, ControlError
from minibroker.client.errors import BrokerError, BrokerUnreachable
from minibroker.client.kafka_client import BROKER, KafkaClient
from minibroker.control_url import split

SETTING: Final = "control.listener"

NAME_IT: Final = "name the control API with --control, as `minibroker start` or `proxy` printed it"

_CONTROL = click.option(
    "--control",
    metavar="URL",
    envvar="MINIBROKER_CONTROL",
    show_envvar=True,
    help="The broker's HTTP control API, e.g. http://127.0.0.1:8080. [default: from the broker]",
)


class ControlClient(Control):
    """The control API of one broker, whose errors are those of a command."""

    timeout_s: ClassVar = 10.0

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._has_answered = False

    def request(
        self, method: str, target: str, body: object = None, timeout_s: float | None = None
    ) -> bytes:
        try:
            answer = super().request(method, target, body, timeout_s)
        except (ControlError, HTTPException, OSError) as error:
            raise self._reported(error, target) from None
        self._has_answered = True
        return answer

    def lines(self, target: str) -> Iterator[bytes]:
        try:
            for line in super().lines(target):
                self._has_answered = True
                yield line
        except (ControlError, HTTPException, OSError) as error:
            raise self._reported(error, target) from None

    def _reported(self, error: Exception, target: str) -> CliError:
        if isinstance(error, ControlError):
            return CliError(f"{self.url}{target}: {error.text}")
        if self._has_answered:
            return CliError(f"the broker at {self.url} closed the connection")
        if isinstance(error, ConnectionRefusedError):
            return Unreachable(
                f"nothing listens on {self.url}; pass --control with the URL that"
                " `minibroker start` printed"
            )
        if isinstance(error, HTTPException):
            return Unreachable(f"{self.url} does not speak HTTP: is it the control API?")
        return Unreachable(f"{self.url}: cannot be reached ({error})")


Connect: TypeAlias = Callable[[], ControlClient]


def control_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--bootstrap-server``, ``--command-config`` and ``--control``.

    The command receives ``connect``, which finds the control API.
    """

    @functools.wraps(command)
    def with_control(
        *arguments: Any, servers: BootstrapServers, control: str | None, **others: Any
    ) -> Any:
        return command(*arguments, connect=lambda: find_control(control, servers), **others)

    return bootstrap_option(_CONTROL(with_control))


def find_control(url: str | None, servers: BootstrapServers) -> ControlClient:
    """Return a client of the given URL, or of the control API of a broker in ``servers``."""
    if not url:
        return ControlClient(f"http://{_from_broker(servers)}")
    try:
        parse_host_port(split(url).address)
    except BadValueError as error:
        raise InvalidUsage(f"--control {url}: {error}; write e.g. http://127.0.0.1:8080") from None
    return ControlClient(url)


def _from_broker(servers: BootstrapServers) -> HostPort:
    try:
        with KafkaClient(*servers) as client:
            (broker, *_) = client.metadata([]).brokers
            configs = client.configs(BROKER, str(broker.node_id), [SETTING], broker.node_id)
    except BrokerUnreachable as error:
        raise Unreachable(f"{error_message(error)}; or {NAME_IT}") from None
    except BrokerError:
        configs = []  # The broker does not allow it.
    value = next((each.value for each in configs if each.name == SETTING), None)
    if not value:
        raise CliError(f"the broker at {servers.bootstrap} does not report {SETTING}; {NAME_IT}")
    return _as_seen_from_here(parse_host_port(value), parse_bootstrap(servers.bootstrap)[0].host)


def _as_seen_from_here(address: HostPort, broker: str) -> HostPort:
    """Replace an unspecified address by the broker's host."""
    try:
        everywhere = ipaddress.ip_address(address.host).is_unspecified
    except ValueError:
        everywhere = not address.host
    return HostPort(broker, address.port) if everywhere else address
