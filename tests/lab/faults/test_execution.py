"""What rules do to a request and to a connection, without a broker or a socket."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.apis.base import CloseConnection
from minibroker.broker.network.interception import InterceptorDisconnect
from minibroker.lab.faults.actions import (
    Close,
    Delay,
    Disconnect,
    Error,
    Kill,
    NeverAnswer,
    Observe,
    Refuse,
    Reorder,
    Silent,
    Slow,
    ThrottleResponse,
)
from minibroker.lab.faults.execution import FaultExecutor
from minibroker.lab.faults.fault_rule import ActiveRule, FaultHold, FaultRule
from minibroker.lab.faults.matching import Candidate, ConnectionAttributes
from minibroker.lab.faults.register import FaultRegister
from minibroker.lab.faults.rulebook import Firing
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from minibroker_protocol.messages.produce import ProduceRequest, ProduceResponse
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Message
from minibroker_protocol.wire import RequestHeader
from tests.lab.faults.messages import SERVED

HEADER = RequestHeader(ApiKey.HEARTBEAT, 4, 1, "client")
FRAME = bytes(range(40))


class Client:
    """Implements ``FaultedConnection``, and keeps what is done to it."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.noted: list[tuple[str, RequestHeader | None]] = []
        self.sent: list[tuple[float, bytes]] = []

    def attributes(self) -> ConnectionAttributes:
        return ConnectionAttributes(7, "L", "127.0.0.1", "User:a", "client")

    def note_fired(self, active: ActiveRule, header: RequestHeader | None) -> None:
        self.noted.append((active.id, header))

    async def send(self, data: bytes) -> None:
        self.sent.append((trio.current_time(), data))

    def reset_on_close(self) -> None:
        self.done.append("reset")

    def close_for(self, rule_id: str) -> None:
        self.done.append(f"closed by {rule_id}")

    async def discard_requests(self) -> None:
        self.done.append("discarded requests")

    async def discard_bytes(self) -> None:
        self.done.append("discarded bytes")


class Lab:
    """One rule, and a client whose requests it may match."""

    def __init__(self, *rules: FaultRule, delays_throttled: bool = False) -> None:
        self.register = FaultRegister(SERVED, trio.current_time, trio.sleep)
        self.executor = FaultExecutor(self, delays_throttled=delays_throttled)
        self.client = Client()
        self.acted: list[str] = []
        self.executed = 0
        for rule, name in zip(rules, "rst", strict=False):
            self.register.add(rule._replace(name=name))
        self.executor.change_rules(self.register.book.active())

    async def decide(self, candidates: Sequence[Candidate]) -> Sequence[Firing]:
        return self.register.decide(candidates)

    async def hold(self, rule_id: str, releases: int, what: FaultHold) -> None:
        await self.register.hold(rule_id, releases, what)

    async def act(self, rule_id: str) -> None:
        self.acted.append(rule_id)
        self.register.overtaken(rule_id)

    async def ask(
        self, request: Message | None = None, header: RequestHeader = HEADER
    ) -> tuple[Any, Any]:
        message = HeartbeatRequest(group_id="g") if request is None else request

        async def run() -> Any:
            self.executed += 1
            return ProduceResponse() if header.api_key == 0 else HeartbeatResponse()

        matches = self.executor.match(self.client.attributes(), header, message, lambda _: None)
        return await self.executor.execute(self.client, header, message, matches, run)


async def test_unmatched_request_is_only_executed() -> None:
    lab = Lab(FaultRule(Error(error="NOT_COORDINATOR"), group="other"))
    assert lab.executor.matcher.rules
    assert lab.executor.matcher.concerns(b"\0\x0c")
    assert await lab.ask() == (HeartbeatResponse(), None)


@pytest.mark.parametrize(("place", "executed"), [("before", 0), ("after", 1)])
async def test_error_is_put_into_the_response(place: Any, executed: int) -> None:
    lab = Lab(FaultRule(Error(error="NOT_COORDINATOR", at=place)))
    response, _ = await lab.ask()
    assert (response.error_code, lab.executed) == (ErrorCode.NOT_COORDINATOR, executed)


async def test_error_without_a_response_closes_the_connection() -> None:
    lab = Lab(FaultRule(Error(error="NOT_LEADER_OR_FOLLOWER"), api="Produce"))
    header = RequestHeader(ApiKey.PRODUCE, 9, 1, "client")
    with pytest.raises(CloseConnection):
        await lab.ask(ProduceRequest(acks=0), header)


async def test_request_without_a_response_is_executed() -> None:
    lab = Lab(FaultRule(Observe()))
    header = RequestHeader(ApiKey.PRODUCE, 9, 1, "client")
    response, _ = await lab.ask(ProduceRequest(acks=0), header)
    assert (response, lab.executed) == (None, 1)


async def test_delay_counts_from_the_hit(autojump_clock: MockClock) -> None:
    lab = Lab(FaultRule(Delay(delay_ms=5000)))
    began = trio.current_time()
    await lab.ask()
    assert trio.current_time() - began == pytest.approx(5)


@pytest.mark.parametrize(
    ("adds", "seconds"), [((None, None), 5), ((None, True), 8), ((True, None), 5)]
)
async def test_delays_of_several_rules_add_up_if_they_say_so(
    adds: tuple[bool | None, bool | None], seconds: int, autojump_clock: MockClock
) -> None:
    lab = Lab(
        FaultRule(Delay(delay_ms=5000, adds=adds[0])), FaultRule(Delay(delay_ms=3000, adds=adds[1]))
    )
    began = trio.current_time()
    await lab.ask()
    assert trio.current_time() - began == pytest.approx(seconds)


async def delays(count: int, seed: int | None, **fields: Any) -> list[float]:
    """How long a rule delays each of several requests, in seconds."""
    lab = Lab(FaultRule(Delay(**fields), seed=seed))
    found = []
    for _ in range(count):
        began = trio.current_time()
        await lab.ask()
        found.append(round(trio.current_time() - began, 6))
    return found


async def test_random_delays_depend_on_the_seed_only(autojump_clock: MockClock) -> None:
    first = await delays(20, 4, delay_ms=10, jitter_ms=90)
    assert first == pytest.approx(await delays(20, 4, delay_ms=10, jitter_ms=90))
    other = await delays(20, None, delay_ms=10, jitter_ms=90)
    assert first != pytest.approx(other)
    assert len(set(first)) == 20


@pytest.mark.parametrize(
    ("distribution", "mean", "least"),
    [(None, 150, 100), ("uniform", 150, 100), ("exponential", 200, 100), ("normal", 100, 0)],
)
async def test_random_delays_have_their_distribution(
    distribution: Any, mean: float, least: float, autojump_clock: MockClock
) -> None:
    found = await delays(500, 1, delay_ms=100, jitter_ms=100, distribution=distribution)
    assert min(found) * 1000 >= least - 0.01
    assert (max(found) * 1000 > 200.01) == (distribution in ("exponential", "normal"))
    assert sum(found) / 500 * 1000 == pytest.approx(mean, rel=0.15)


async def test_broker_action_is_passed_on() -> None:
    lab = Lab(FaultRule(Kill(process="worker-0")))
    await lab.ask()
    assert lab.acted == ["r"]


@pytest.mark.parametrize(("place", "executed"), [("before", 1), ("after", 2)])
async def test_second_match_is_answered_before_the_first(place: Any, executed: int) -> None:
    lab = Lab(FaultRule(Reorder(at=place)))
    answered: list[str] = []

    async def first() -> None:
        await lab.ask()
        answered.append("first")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(first)
        await wait_all_tasks_blocked()
        _, faults = await lab.ask()
        assert lab.executed == executed
        await wait_all_tasks_blocked()
        assert answered == []
        await faults.send(FRAME)
        answered.append("second")
    assert answered == ["second", "first"]


@pytest.mark.parametrize("acks", [0, -1])
async def test_first_match_goes_on_if_the_second_gets_no_response(acks: int) -> None:
    lab = Lab(FaultRule(Reorder(at="before")))
    lab.register.add(FaultRule(Disconnect(at="after"), name="d", api="Produce"))
    if acks:
        lab.executor.change_rules(lab.register.book.active()[1:])
    header = RequestHeader(ApiKey.PRODUCE, 9, 1, "client")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lab.ask)
        await wait_all_tasks_blocked()
        with nullcontext() if acks == 0 else pytest.raises(InterceptorDisconnect):
            await lab.ask(ProduceRequest(acks=acks), header)


@pytest.mark.parametrize("reset", [False, True])
async def test_disconnect_before_the_work_executes_nothing(reset: bool) -> None:
    lab = Lab(FaultRule(Disconnect(reset=reset)))
    with pytest.raises(InterceptorDisconnect, match="rule r"):
        await lab.ask()
    assert (lab.executed, lab.client.done) == (0, ["reset"] if reset else [])


async def test_silence_lasts_until_the_client_disconnects() -> None:
    lab = Lab(FaultRule(NeverAnswer(at="after")))
    with pytest.raises(InterceptorDisconnect, match="silent"):
        await lab.ask()
    assert (lab.executed, lab.client.done) == (1, ["discarded requests"])


async def test_frame_is_cut() -> None:
    lab = Lab(FaultRule(Disconnect(at="middle", bytes=3)))
    _, faults = await lab.ask()
    with pytest.raises(InterceptorDisconnect):
        await faults.send(FRAME)
    assert [data for _, data in lab.client.sent] == [FRAME[:3]]


async def test_slow_response_has_its_rate(autojump_clock: MockClock) -> None:
    lab = Lab(FaultRule(Slow(bytes_per_s=10)))
    began = trio.current_time()
    _, faults = await lab.ask()
    assert await faults.send(FRAME) == len(FRAME)
    assert b"".join(data for _, data in lab.client.sent) == FRAME
    assert lab.client.sent[-1][0] - began == pytest.approx(4)


@pytest.mark.parametrize(("mute", "seconds"), [(None, 2), (False, 0)])
async def test_throttled_connection_is_muted(
    autojump_clock: MockClock, mute: bool | None, seconds: float
) -> None:
    lab = Lab(FaultRule(ThrottleResponse(throttle_ms=2000, mute=mute)))
    began = trio.current_time()
    response, faults = await lab.ask()
    assert response.throttle_time_ms == 2000
    await faults.mute()
    assert trio.current_time() - began == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("rule", "done"),
    [(FaultRule(Refuse()), ["reset"]), (FaultRule(Silent()), ["discarded bytes"])],
)
async def test_new_connection_is_refused_or_left_silent(rule: FaultRule, done: list[str]) -> None:
    lab = Lab(rule)
    with pytest.raises(InterceptorDisconnect):
        await lab.executor.meet(lab.client)
    assert lab.client.done == done


async def test_open_connections_are_closed_by_a_rule_that_is_added() -> None:
    lab = Lab(FaultRule(Close(), client_id="cli*"))
    await lab.executor.meet(lab.client)
    (active,) = lab.register.book.active()
    other = active._replace(rule=FaultRule(Close(), client_id="other"))
    await lab.executor.close_matching(other, [lab.client])
    assert lab.client.done == []
    await lab.executor.close_matching(active, [lab.client])
    assert lab.client.done == ["closed by r"]


async def test_selection_by_topic_forbids_fetch_sessions() -> None:
    by_topic = Lab(FaultRule(Delay(delay_ms=1), topic="t"))
    assert by_topic.executor.matcher.forbids_fetch_sessions
    assert not Lab(FaultRule(Delay(delay_ms=1))).executor.matcher.forbids_fetch_sessions
