"""A client that requests an unserved protocol is logged once, and memory is bounded."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.admission.rejected_connections import AcceptedConnection
from minibroker.broker.apis.unserved import CONSUMER_GROUPS, SHARE_GROUPS, Unserved
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.network.client_connection import SHOWN_MAX, ClientConnection
from minibroker.broker.network.reports import CLIENTS_MAX, UnservedClients
from minibroker.runtime.stream import memory_stream_pair


def a_client(
    client_id: str | None, software: tuple[str, str] | None = ("lib", "1.2")
) -> ClientConnection:
    _, server = memory_stream_pair(("10.0.0.7", 5000), ("127.0.0.1", 9092))
    client = ClientConnection(
        AcceptedConnection("PLAINTEXT", server.local, server.peer, 1), server, 0
    )
    client.client_id = client_id
    client.software = software
    return client


@pytest.fixture
def clients() -> UnservedClients:
    times = iter(range(1_000_000))
    return UnservedClients(EventLog("test"), lambda: float(next(times)))


def warnings(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.__dict__["fields"] for record in caplog.records if record.levelname == "WARNING"]


def test_unserved_client_that_asks_again_is_logged_once(
    clients: UnservedClients, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        clients.note(a_client("app"), SHARE_GROUPS)
    (fields,) = warnings(caplog)
    assert fields == {
        "client_id": "app",
        "software": "lib 1.2",
        "client": "10.0.0.7",
        "protocol": SHARE_GROUPS.protocol,
        "advice": SHARE_GROUPS.advice,
    }
    (known,) = clients.all()
    assert (known.requests, known.last, known.host) == (3, 2.0, "10.0.0.7")


def test_unserved_client_is_logged_for_each_protocol_and_software(
    clients: UnservedClients, caplog: pytest.LogCaptureFixture
) -> None:
    clients.note(a_client("app"), SHARE_GROUPS)
    clients.note(a_client("app"), CONSUMER_GROUPS)
    clients.note(a_client("app", ("lib", "2.0")), SHARE_GROUPS)
    clients.note(a_client(None, None), SHARE_GROUPS)
    assert len(warnings(caplog)) == len(clients.all()) == 4


def test_unserved_clients_above_the_limit_forget_the_one_not_seen_longest(
    clients: UnservedClients,
) -> None:
    for number in range(CLIENTS_MAX):
        clients.note(a_client(f"app-{number}"), SHARE_GROUPS)
    clients.note(a_client("app-0"), SHARE_GROUPS)
    clients.note(a_client("newest"), SHARE_GROUPS)
    known = [each.client_id for each in clients.all()]
    assert len(known) == CLIENTS_MAX
    assert known[0] == "app-2"
    assert known[-2:] == ["app-0", "newest"]


def test_long_client_name_is_truncated_in_warning(clients: UnservedClients) -> None:
    clients.note(a_client("x" * 5000), Unserved("y" * 5000, "z"))
    (known,) = clients.all()
    assert known.client_id == "x" * SHOWN_MAX
    assert known.protocol == "y" * SHOWN_MAX
