"""Random sequences of events never violate the invariants of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minibroker.broker.groups.classic_group import ClassicGroup
from minibroker.broker.groups.events import (
    GroupAnswer,
    JoinResult,
    LeavingMember,
    Moment,
    Persist,
    Persisted,
    TimePassed,
)
from minibroker.broker.groups.group import GroupLimits
from minibroker.broker.groups.states import GroupState
from minibroker_protocol.errors import ErrorCode

if TYPE_CHECKING:
    from tests.broker.groups.conftest import Words

STICKY = (("sticky", b"s"), ("range", b"r"))
INSTANCES = (None, None, "s1", "s2")


class Chaos:
    """Passes random events to a group and checks the invariants after each."""

    def __init__(self, say: type[Words], limits: GroupLimits) -> None:
        self.say = say
        self.now = 0.0
        self.ids = iter(f"id{number}" for number in range(100_000))
        self.group = ClassicGroup("g", limits, lambda: next(self.ids), Moment(0.0, 0))
        self.known: list[str] = [""]
        self.open: set[int] = set()
        self.waiter = 0
        self.generation = 0

    def act(self, data: st.DataObject) -> None:
        kind = data.draw(st.sampled_from(["join", "join", "sync", "beat", "commit", "leave", "t"]))
        self.waiter += 1
        member = data.draw(st.sampled_from(self.known))
        instance = data.draw(st.sampled_from(INSTANCES))
        generation = self.group.generation + data.draw(st.sampled_from([0, 0, 0, -1]))
        event: Any
        if kind == "join":
            protocols = data.draw(st.sampled_from([STICKY, STICKY[:1], (("range", b"r"),)]))
            event = self.say.join(
                self.waiter,
                member,
                group_instance_id=instance,
                protocols=protocols,
                rebalance_timeout_ms=data.draw(st.sampled_from([0, 5_000])),
                require_known_member_id=data.draw(st.booleans()),
                can_skip_assignment=data.draw(st.booleans()),
            )
        elif kind == "sync":
            event = self.say.sync(self.waiter, member, generation, group_instance_id=instance)
        elif kind == "beat":
            event = self.say.beat(self.waiter, member, generation, instance)
        elif kind == "commit":
            event = self.say.commit(self.waiter, member, generation, instance)
        elif kind == "leave":
            event = self.say.leave(self.waiter, LeavingMember(member, instance))
        else:
            self.now += data.draw(st.sampled_from([0.5, 3.0, 11.0]))
            event = TimePassed()
        self.feed(event, data)

    def feed(self, event: Any, data: st.DataObject) -> None:
        if hasattr(event, "waiter"):
            self.open.add(event.waiter)
        while event is not None:
            decisions = self.group.handle(event, Moment(self.now, round(self.now * 1000)))
            event = None
            for decision in decisions:
                if isinstance(decision, GroupAnswer):
                    self.open.remove(decision.waiter)  # KeyError: answered twice
                    result = decision.result
                    if isinstance(result, JoinResult) and result.member_id not in self.known:
                        self.known.append(result.member_id)
                elif isinstance(decision, Persist):
                    assert decision is decisions[-1]
                    failing = data.draw(st.sampled_from([False, False, True]))
                    event = Persisted(ErrorCode.NOT_COORDINATOR if failing else ErrorCode.NONE)
        self.check()

    def check(self) -> None:
        group = self.group
        membership = group.membership
        assert group.generation >= self.generation
        self.generation = group.generation
        assert (membership.leader is not None) == (len(membership) > 0)
        assert membership.leader is None or membership.leader in membership
        waiting = set()
        for member in membership:
            assert member.join_waiter is None or member.sync_waiter is None
            assert member.member_id not in membership.pending
            assert member.join_waiter is None or group.state is GroupState.PREPARING_REBALANCE
            assert member.sync_waiter is None or group.state is GroupState.COMPLETING_REBALANCE
            assert member.expires_at is not None or not member.may_expire
            if member.group_instance_id is not None:
                assert membership.static_member_id(member.group_instance_id) == member.member_id
            waiting |= {member.join_waiter, member.sync_waiter} - {None}
        assert waiting == self.open
        assert membership.awaiting_join == sum(member.awaits_join for member in membership)
        assert membership.pending_sync <= {member.member_id for member in membership}
        assert group.state is not GroupState.EMPTY or len(membership) == 0
        assert group.next_deadline is None or group.next_deadline > self.now


@given(data=st.data(), delay=st.sampled_from([0.0, 3.0]), members_max=st.sampled_from([2, 50]))
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_random_events_answer_every_waiter_once(
    data: st.DataObject, delay: float, members_max: int, say: type[Words]
) -> None:
    limits = GroupLimits(initial_rebalance_delay_s=delay, members_max=members_max)
    chaos = Chaos(say, limits)
    for _ in range(data.draw(st.integers(5, 60))):
        chaos.act(data)
    # Without further events, all sessions expire, and no waiter may remain.
    for _ in range(1000):
        if chaos.group.next_deadline is None:
            break
        chaos.now = chaos.group.next_deadline
        chaos.feed(TimePassed(), data)
    assert not chaos.open
    assert len(chaos.group.membership) == 0
