"""The activity event of a request: its client, records and errors."""

from __future__ import annotations

from typing import Any, cast

import pytest

from minibroker.broker.admission.acceptor_messages import AcceptedConnection
from minibroker.broker.network.client_connection import ClientConnection
from minibroker.broker.network.quota_stage import QuotaChecks, RequestCost
from minibroker.broker.quotas.entity import Bound, Tags
from minibroker.broker.quotas.manager import Mutated, QuotaCheck
from minibroker.broker.quotas.types import QuotaType
from minibroker.broker.security.principal import Principal
from minibroker.lab.observers.activity_sender import NAME_CHARACTERS_MAX, ActivitySender
from minibroker.lab.observers.request_activity import RequestActivity
from minibroker_protocol.headers import RequestHeader
from minibroker_protocol.messages.heartbeat import HeartbeatResponse
from minibroker_protocol.registry import ApiKey


def client(host: str = "::ffff:10.0.0.1") -> ClientConnection:
    accepted = AcceptedConnection("PLAINTEXT", ("10.0.0.9", 9092), (host, 5000), 7)
    found = ClientConnection(accepted, cast("Any", None), 0.0)
    found.caller = found.caller._replace(principal=Principal("User", "alice"))
    return found


def cost_of(response: Any, checks: QuotaChecks, mutated: Mutated | None) -> RequestCost:
    made = RequestCost(client(), 100, 0, 0)
    made.header = RequestHeader(ApiKey.PRODUCE, 9, 1, "etl")
    made.now, made.mutated = 12.3456, mutated
    made.error, made.response_bytes = getattr(response, "error_code", 0), 40
    made.owners_ns, made.network_ns, made.io_ns, made.total_ns = 24, 12, 13, 14
    made.worked_ns, made.later_time = 15, (16, 12_347, 4)
    made.checks = checks
    return made


class Sent:
    """Replaces the sender: keeps the events."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def samples(self, connection: int) -> bool:
        return connection == 7

    def time_us(self, now: float) -> int:
        return 99

    def report(self, event: Any) -> None:
        self.events.append(event)


def observer() -> tuple[RequestActivity, list[Any]]:
    sent = Sent()
    return RequestActivity(cast("ActivitySender", sent)), sent.events


def senders(*costs: RequestCost) -> list[Any]:
    """The senders in the events of requests."""
    activity, events = observer()
    for cost in costs:
        activity.sent(cost, None)
    return [event[2] for event in events]


def request_of(one: ClientConnection, client_id: str, user: str = "alice") -> RequestCost:
    made = cost_of(None, QuotaChecks(), None)
    made.client, made.header = one, RequestHeader(ApiKey.PRODUCE, 9, 1, client_id)
    one.caller = one.caller._replace(principal=Principal("User", user))
    return made


def test_quota_checks_are_requested_for_connections_in_the_sample() -> None:
    activity, _ = observer()
    one = client()
    activity.opened(one)
    assert one.needs_checks


def test_request_without_quota_checks_is_not_reported() -> None:
    activity, events = observer()
    made = cost_of(None, QuotaChecks(), None)
    made.checks = None
    activity.sent(made, None)
    activity.failed(made)
    assert events == []


def test_activity_client_is_reused_for_consecutive_requests() -> None:
    one, activity_and_events = client(), observer()
    activity, events = activity_and_events
    for client_id, user in (("etl", "alice"), ("e" + "tl", "alice"), ("other", "alice")):
        activity.sent(request_of(one, client_id, user), None)
    activity.sent(request_of(one, "other", "bob"), None)
    first, again, other, bob = (event[2] for event in events)
    assert first == ("PLAINTEXT", 7, "10.0.0.1", "alice", "etl")
    assert again is first
    assert other[4] == "other"
    assert bob[3] == "bob"


def test_closed_connection_is_forgotten() -> None:
    activity, _ = observer()
    one = client()
    activity.sent(request_of(one, "etl"), None)
    activity.closed(one)
    assert not activity._clients


def test_long_names_are_cut() -> None:
    ((*_, client_id),) = senders(request_of(client(), "c" * 9999))
    assert len(client_id) == NAME_CHARACTERS_MAX


def event_of(cost: RequestCost) -> Any:
    activity, events = observer()
    activity.sent(cost, None)
    (event,) = events
    return event


def test_event_contains_the_quota_checks() -> None:
    quota_checks = QuotaChecks()
    quota_checks.throttle_ms = 500
    tags, bound = Tags("alice", ""), Bound(10.0, None)
    quota_checks.note(QuotaCheck(QuotaType.PRODUCE, tags, 15.0, bound, 500, 12_345, 1))
    quota_checks.note(QuotaCheck(QuotaType.REQUEST, tags, 1.0, None, 0, 12_346, 2))
    mutation = QuotaCheck(QuotaType.CONTROLLER_MUTATION, tags, -1.0, bound, 9, 8, 3)
    mutated, failed = Mutated(5, 2, True, mutation, 9), HeartbeatResponse(error_code=3)
    cost = cost_of(failed, quota_checks, mutated)
    cost.records = 3
    event = event_of(cost)
    assert event == (
        *(99, 12_345, ("PLAINTEXT", 7, "10.0.0.1", "alice", "etl"), 0, 9, 100, 40, 3),
        *((5, 2, True), False, 11, 12, 13, 14, 15, (16, 12_347, 4)),
        (
            ("alice", "", 15.0, 10.0, 500, 12_345),
            None,
            ("alice", "", 1.0, None, 0, 12_346),
            ("alice", "", -1.0, 10.0, 9, 8),
        ),
        (1, 2, None),
        *(500, 3),
    )


@pytest.mark.parametrize(
    ("looks_at", "changes", "places"),
    [
        ({}, None, None),
        ({QuotaType.REQUEST: 5}, None, (5, None, None)),
        ({QuotaType.FETCH: 5, QuotaType.REQUEST: 5}, None, (5, None, 9)),
        ({QuotaType.PRODUCE: 5, QuotaType.REQUEST: 4}, None, (5, 4, None)),
        ({QuotaType.REQUEST: 5}, 3, (3, 5, None)),
    ],
)
def test_equal_ordinals_are_recorded_once(
    looks_at: dict[QuotaType, int], changes: int | None, places: object
) -> None:
    tags, quota_checks = Tags("alice", ""), QuotaChecks()
    for kind, ordinal in looks_at.items():
        quota_checks.note(QuotaCheck(kind, tags, 1.0, None, 0, 1, ordinal))
    if QuotaType.FETCH in looks_at:
        quota_checks.taken_back = 9
    mutated = None
    if changes is not None:
        look = QuotaCheck(QuotaType.CONTROLLER_MUTATION, tags, 1.0, None, 0, 1, changes)
        mutated = Mutated(1, 0, True, look, 0)
    event = event_of(cost_of(None, quota_checks, mutated))
    assert event[-3] == places
