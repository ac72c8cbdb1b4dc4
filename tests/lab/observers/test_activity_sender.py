"""Activity events of requests; sent in chunks and bounded, and dropped ones are counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.admission.connection_events import ADMITTED
from minibroker.broker.admission.rejected_connections import AcceptedConnection
from minibroker.broker.metrics.definitions import ACTIVITY_DROPPED
from minibroker.broker.network.client_connection import ClientConnection
from minibroker.broker.network.quota_stage import QuotaChecks, RequestCost
from minibroker.broker.process.environment import PROCESSOR, RECORDER, Environment
from minibroker.broker.process.messages import ActivityBatch, ActivityWritten
from minibroker.broker.quotas.manager import Mutated, QuotaCheck
from minibroker.broker.quotas.types import Bound, QuotaType, Tags
from minibroker.broker.security.principal import Principal
from minibroker.broker.settings import Settings
from minibroker.lab.activity.events import UNWRITTEN_MAX, ConnectionActivity, ConnectionStep, unpack
from minibroker.lab.observers.activity_sender import (
    CHUNK_EVENTS,
    DELAY_S,
    NAME_CHARACTERS_MAX,
    PENDING_MAX,
    ActivitySender,
    RequestActivity,
    is_sampled,
)
from minibroker.runtime.rpc import Channel
from minibroker_protocol.messages.heartbeat import HeartbeatResponse
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.wire import RequestHeader
from tests.broker.process.conftest import MakeEnvironment, make_env

__all__ = ["make_env"]


def event(number: int) -> ConnectionActivity:
    return number, 0, ("PLAINTEXT", number, "10.0.0.1"), "accepted", None, None


class SenderHarness:
    """A sender, and the recorder played by the test."""

    def __init__(self, env: Environment, nursery: trio.Nursery) -> None:
        self.env = env
        self.activity = ActivitySender(env)
        self.listener = env.transport.listen(RECORDER)
        nursery.start_soon(self.activity.run)

    async def call(self) -> Channel:
        return await self.listener.accept()

    def record(self, count: int, first: int = 0) -> None:
        for number in range(first, first + count):
            self.activity.report(event(number))

    @property
    def dropped(self) -> int:
        return self.env.metrics.snapshot().counters.get((ACTIVITY_DROPPED.name, ()), 0)


@pytest.fixture
async def harness(make_env: MakeEnvironment, nursery: trio.Nursery) -> SenderHarness:
    return SenderHarness(make_env(PROCESSOR), nursery)


@contextmanager
def reauthenticate(seconds: float) -> Iterator[None]:
    began = trio.current_time()
    yield
    assert trio.current_time() - began == pytest.approx(seconds)


def numbers(batch: ActivityBatch) -> list[int]:
    return [one[0] for one in unpack(batch.chunk)]


async def test_few_events_wait_for_more(harness: SenderHarness, autojump_clock: MockClock) -> None:
    channel = await harness.call()
    await wait_all_tasks_blocked()
    with reauthenticate(DELAY_S):
        harness.record(3)
        assert numbers(await channel.receive()) == [0, 1, 2]
    with reauthenticate(DELAY_S):
        harness.record(1, 3)
        assert numbers(await channel.receive()) == [3]


async def test_full_batch_is_sent_at_once(
    harness: SenderHarness, autojump_clock: MockClock
) -> None:
    channel = await harness.call()
    await wait_all_tasks_blocked()
    with reauthenticate(0):
        harness.record(1)
        await wait_all_tasks_blocked()
        harness.record(CHUNK_EVENTS, 1)
        assert numbers(await channel.receive()) == list(range(CHUNK_EVENTS))


async def test_events_without_room_are_dropped_and_counted(
    harness: SenderHarness, autojump_clock: MockClock
) -> None:
    harness.record(PENDING_MAX + 5)
    assert harness.dropped == 5
    channel = await harness.call()
    found: list[int] = []
    dropped = 0
    while len(found) < PENDING_MAX:
        batch = await channel.receive()
        found += numbers(batch)
        dropped += batch.dropped
        await channel.send(ActivityWritten(len(numbers(batch)), batch.dropped))
    assert found == list(range(PENDING_MAX))
    assert dropped == 5


async def test_no_more_is_sent_than_the_recorder_may_have(
    harness: SenderHarness, autojump_clock: MockClock
) -> None:
    channel = await harness.call()
    for first in range(0, 2 * UNWRITTEN_MAX, CHUNK_EVENTS):
        harness.record(CHUNK_EVENTS, first)
        if first < UNWRITTEN_MAX:
            await channel.receive()
    with trio.move_on_after(60) as scope:
        await channel.receive()
    assert scope.cancelled_caught
    await channel.send(ActivityWritten(CHUNK_EVENTS, 0))
    assert len(numbers(await channel.receive())) == CHUNK_EVENTS


async def test_events_of_dead_recorder_are_dropped(
    harness: SenderHarness, autojump_clock: MockClock
) -> None:
    channel = await harness.call()
    harness.record(10)
    await channel.receive()
    await channel.send(ActivityWritten(4, 0))
    await wait_all_tasks_blocked()
    channel.close()
    channel = await harness.call()
    assert harness.dropped == 6
    batch = await channel.receive()
    assert (numbers(batch), batch.dropped) == ([], 6)
    # Nor is it forgotten if this recorder dies, too; and it is not counted again.
    channel.close()
    channel = await harness.call()
    harness.record(1, 10)
    batch = await channel.receive()
    assert (numbers(batch), batch.dropped) == ([10], 6)
    await channel.send(ActivityWritten(1, 6))
    await wait_all_tasks_blocked()
    channel.close()
    channel = await harness.call()
    harness.record(1, 11)
    assert (await channel.receive()).dropped == 0
    assert harness.dropped == 6


async def test_last_events_are_sent_at_once(
    harness: SenderHarness, autojump_clock: MockClock
) -> None:
    channel = await harness.call()
    harness.record(3)
    with reauthenticate(0):
        await harness.activity.finish()
    assert numbers(await channel.receive()) == [0, 1, 2]


async def test_finish_without_recorder_times_out(
    harness: SenderHarness, autojump_clock: MockClock
) -> None:
    channel = await harness.call()
    for first in range(0, UNWRITTEN_MAX, CHUNK_EVENTS):
        harness.record(CHUNK_EVENTS, first)
        await channel.receive()
    harness.record(1)
    await harness.activity.finish()  # It gives no receipts any more.


async def test_sample_of_connections_is_recorded(
    make_env: MakeEnvironment, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    settings = Settings.from_sources(pairs=["activity.sample=0.25", "activity.enable=true"])
    found = ActivitySender(make_env(PROCESSOR, settings=settings))
    at = SenderHarness(make_env(PROCESSOR, settings=settings), nursery)
    channel = await at.call()
    for number in range(100):
        who = AcceptedConnection("PLAINTEXT", ("10.0.0.9", 9092), ("::ffff:10.0.0.1", 5000), number)
        at.activity.report_connection("closed", who, 1.5, "idle", None)
    events = unpack((await channel.receive()).chunk)
    assert len(events) == pytest.approx(25, abs=3)
    assert {one[1:2] + one[3:] for one in events} == {(1500, "closed", "idle", None)}
    assert all(found.samples(one[2][1]) for one in events)


async def test_connection_that_was_handed_over_is_not_reported(harness: SenderHarness) -> None:
    channel = await harness.call()
    who = AcceptedConnection("PLAINTEXT", ("10.0.0.9", 9092), ("10.0.0.1", 5000), 1)
    for kind in ("handed", ADMITTED):
        harness.activity.report_connection(kind, who, 1.5, None, None)
    (event,) = unpack((await channel.receive()).chunk)
    assert event[3] == ConnectionStep.ADMITTED


LIFE = 3 << 32


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
def test_sampled_share_matches_configured_share(share: float) -> None:
    found = sum(is_sampled(LIFE | number, share) for number in range(10_000))
    assert found == pytest.approx(share * 10_000, abs=10)


def test_sample_of_one_includes_everything() -> None:
    assert all(is_sampled(number, 1.0) for number in range(1000))


def test_larger_sample_includes_smaller_sample() -> None:
    small = {number for number in range(1000) if is_sampled(number, 0.2)}
    assert small <= {number for number in range(1000) if is_sampled(number, 0.3)}


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
