"""Patterns and pushes of client metrics that would cost a broker much; others are served."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from minibroker.broker.telemetry import FIELDS_MAX
from minibroker_protocol.compression import Compression, compress
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
)
from minibroker_protocol.messages.list_transactions import ListTransactionsRequest
from minibroker_protocol.messages.push_telemetry import PushTelemetryRequest
from minibroker_protocol.types import ZERO_UUID
from system_tests.connections.dialling import Client
from system_tests.faults.conftest import Starter
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.control import ask
from system_tests.peers.configs import SET, alter
from system_tests.peers.resources import METRICS

pytestmark = pytest.mark.minibroker

BACKTRACKING = "(a+)+b"
"""An engine that tries every way needs 2**59 tries for the client id below."""
CLIENT_ID = "a" * 60
EMPTY_MESSAGES = 4_000_000
HOSTILE_CLIENTS = 4


def subscribe(broker: RunningBroker, **configs: str) -> tuple[int, str]:
    """The error of a new subscription, and its text."""
    changes = [(name.replace("_", "."), SET, value) for name, value in configs.items()]
    with Client(broker.address) as client:
        [response] = client.ask(alter(METRICS, "hostile", *changes), 1).responses
    return response.error_code, response.error_message or ""


def small_push_of_many_messages() -> bytes:
    return bytes(compress(Compression.GZIP, b"\x0a\x00" * EMPTY_MESSAGES))


def subscribed(client: Client) -> PushTelemetryRequest:
    """A push of a client that has asked for its subscription."""
    request = GetTelemetrySubscriptionsRequest(client_instance_id=ZERO_UUID)
    answer = client.ask(request, 0)
    assert (answer.error_code, answer.requested_metrics) == (ErrorCode.NONE, ["*"])
    return PushTelemetryRequest(
        client_instance_id=answer.client_instance_id, subscription_id=answer.subscription_id
    )


def test_pattern_with_nested_repetitions_stalls_nobody(start: Starter) -> None:
    broker = start()
    assert subscribe(broker, metrics="*", match=f"client_id={BACKTRACKING}")[0] == ErrorCode.NONE
    with Client(broker.address, client_id=CLIENT_ID) as client:
        request = GetTelemetrySubscriptionsRequest(client_instance_id=ZERO_UUID)
        answer = client.ask(request, 0)
    assert (answer.error_code, answer.requested_metrics) == (ErrorCode.NONE, [])
    with Client(broker.address, client_id=f"{CLIENT_ID}b") as client:
        subscribed(client)
    assert ask(broker, "GET", "/v1/client-metrics")["instances"]
    broker.stop()


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"(a+)\1", "reference to a group"),
        ("(?!a)a+", "invalid group"),
        ("(a{100}){100}", "instructions"),
    ],
)
def test_pattern_without_linear_match_is_refused(
    pattern: str, reason: str, broker: RunningBroker
) -> None:
    error, text = subscribe(broker, match=f"client_id={pattern}")
    assert error == ErrorCode.INVALID_CONFIG
    assert pattern in text
    assert reason in text


@pytest.mark.parametrize("pattern", ["((((x{0}){1000}){1000}){1000}){1000}", r"(a+)\1", "(?!a)a"])
def test_hostile_pattern_of_transactions_is_refused(pattern: str, broker: RunningBroker) -> None:
    with Client(broker.address) as client:
        request = ListTransactionsRequest(transactional_id_pattern=pattern)
        assert client.ask(request, 2).error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_small_pushes_of_millions_of_messages_are_refused(start: Starter) -> None:
    """Clients push at once; each of them is refused, and an honest one is served behind them."""
    broker = start()
    assert subscribe(broker, metrics="*")[0] == ErrorCode.NONE
    metrics = small_push_of_many_messages()
    assert len(metrics) < 10_000
    with ExitStack() as stack:
        clients = [
            stack.enter_context(Client(broker.address, client_id=f"hostile-{number}"))
            for number in range(HOSTILE_CLIENTS)
        ]
        for client in clients:
            push = subscribed(client)
            push.compression_type, push.metrics = Compression.GZIP, metrics
            client.send(push, 0)
        honest = stack.enter_context(Client(broker.address, client_id="honest"))
        assert honest.ask(subscribed(honest), 0).error_code == ErrorCode.NONE
        answers = [client.answer(PushTelemetryRequest, 0) for client in clients]
    assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_RECORD] * HOSTILE_CLIENTS
    shown = {
        each["client_id"]: each["last_problem"]
        for each in ask(broker, "GET", "/v1/client-metrics")["instances"]
    }
    assert shown.pop("honest") == ""
    assert all(f"more than {FIELDS_MAX} fields" in problem for problem in shown.values())
