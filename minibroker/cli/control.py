"""A client of a broker's control API.

Owns finding the API, requests over one kept-alive connection, and the errors of an unreachable
broker. It must never know the meaning of a response. Invariant: the errors distinguish a broker
that stopped from one that was never reached. Kafka's tools use JMX and need its address.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, Final

import click

from minibroker.broker.settings.types import BadValueError, HostPort, parse_host_port
from minibroker.cli.errors import CliError, InvalidUsage, Unreachable, error_message
from minibroker.client.bootstrap import BootstrapServers, parse_bootstrap
from minibroker.client.errors import BrokerUnreachable
from minibroker.client.kafka_client import KafkaClient
from minibroker.control_url import split
from minibroker_protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

TIMEOUT_S: Final = 10.0
STREAM_TIMEOUT_S: Final = 60.0
"""Longest silence of a stream, which sends blank lines."""

SETTING: Final = "control.listener"
BROKER: Final = 4
"""Kafka's number of this resource type."""

NAME_IT: Final = "name the control API with --control, as `minibroker start` or `proxy` printed it"

control_option: Callable[[Any], Any] = click.option(
    "--control",
    metavar="URL",
    envvar="MINIBROKER_CONTROL",
    show_envvar=True,
    help="The broker's HTTP control API, e.g. http://127.0.0.1:8080. [default: from the broker]",
)


class ControlClient:
    """A connection to one broker's control API."""

    def __init__(self, address: HostPort, headers: Mapping[str, str] | None = None) -> None:
        """``headers`` are sent with each request."""
        self._address = address
        self._headers = dict(headers or {})
        self._connection: HTTPConnection | None = None
        self._has_answered = False

    @property
    def url(self) -> str:
        """URL of the API."""
        return f"http://{self._address}"

    def get(self, path: str) -> bytes:
        """Request ``path``; retry once, as the controller process may have restarted."""
        try:
            return self._get(path)
        except (HTTPException, OSError) as error:
            self.close()
            if not self._has_answered:
                raise self._gone(error) from None
        try:
            return self._get(path)
        except (HTTPException, OSError) as error:
            self.close()
            raise self._gone(error) from None

    def send(
        self, method: str, path: str, body: object = None, *, timeout_s: float = TIMEOUT_S
    ) -> bytes:
        """Send a request that changes the broker or waits; it is not retried."""
        try:
            return self._exchange(method, path, body, timeout_s)
        except (HTTPException, OSError) as error:
            self.close()
            raise self._gone(error) from None

    def lines(self, path: str) -> Iterator[bytes]:
        """Yield the lines of a response that may have no end."""
        try:
            response = self._request("GET", path, None, STREAM_TIMEOUT_S)
            while line := response.readline():
                yield line
        except (HTTPException, OSError) as error:
            self.close()
            raise self._gone(error) from None

    def _get(self, path: str) -> bytes:
        return self._exchange("GET", path, None, TIMEOUT_S)

    def _exchange(self, method: str, path: str, body: object, timeout_s: float) -> bytes:
        return self._request(method, path, body, timeout_s).read()

    def _request(self, method: str, path: str, body: object, timeout_s: float) -> HTTPResponse:
        if self._connection is None:
            host, port = self._address
            self._connection = HTTPConnection(host, port, timeout=timeout_s)
        content = None if body is None else json.dumps(body).encode()
        self._connection.request(method, path, content, self._headers)
        response = self._connection.getresponse()
        if response.status >= 300:
            refusal = _refusal(response.status, response.read())
            raise CliError(f"{self.url}{path}: {refusal}")
        self._has_answered = True
        return response

    def _gone(self, error: Exception) -> CliError:
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

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _refusal(status: int, body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
        return f"{error['message']} {error['hint']}".rstrip()
    except (ValueError, KeyError, TypeError):
        return f"HTTP status {status}: is it the control API?"


def find_control(url: str | None, servers: BootstrapServers) -> ControlClient:
    """Connect to the given URL, or to the control API of a broker in ``servers``."""
    return _from_url(url) if url else ControlClient(_from_broker(servers))


def _from_url(url: str) -> ControlClient:
    address, headers = split(url)
    try:
        return ControlClient(parse_host_port(address), headers)
    except BadValueError as error:
        raise InvalidUsage(f"--control {url}: {error}; write e.g. http://127.0.0.1:8080") from None


def _from_broker(servers: BootstrapServers) -> HostPort:
    try:
        with KafkaClient(*servers) as client:
            (broker, *_) = client.metadata([]).brokers
            resource = DescribeConfigsResource(
                resource_type=BROKER,
                resource_name=str(broker.node_id),
                configuration_keys=[SETTING],
            )
            request = DescribeConfigsRequest(resources=[resource])
            (found,) = client.send(request, DescribeConfigsResponse, broker.node_id).results
    except BrokerUnreachable as error:
        raise Unreachable(f"{error_message(error)}; or {NAME_IT}") from None
    value = next((each.value for each in found.configs if each.name == SETTING), None)
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
