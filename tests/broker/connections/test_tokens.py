"""Limits shared by several processors: exact in any order of events, and after any kill."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minibroker.broker.connections.limits import ExceededCount
from minibroker.broker.connections.tokens import (
    TOTAL,
    Admit,
    DropLimits,
    Holdings,
    Reject,
    Tokens,
    home_of,
)
from tests.broker.connections.token_world import World

IPS = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
HERE, THERE = IPS[:2]

limits = st.builds(
    DropLimits,
    st.none() | st.integers(0, 12),
    st.none() | st.integers(0, 6),
    st.dictionaries(st.sampled_from(IPS), st.integers(0, 9), max_size=2),
)


class Interleavings(RuleBasedStateMachine):
    """Anything that may happen, in any order; what breaks it is made as short as can be."""

    world: World

    @initialize(size=st.integers(1, 4), first=limits, linked=st.booleans())
    def begin(self, size: int, first: DropLimits, linked: bool) -> None:
        self.world = World(size, first)
        if linked:
            self.world.arrive()

    def any_living(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.world.living)))

    @precondition(lambda self: self.world.living)
    @rule(data=st.data(), ip=st.sampled_from(IPS))
    def connect(self, data: st.DataObject, ip: str) -> None:
        self.world.connect(self.any_living(data), ip)

    @precondition(lambda self: self.world.there())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.world.release(*data.draw(st.sampled_from(self.world.there())))

    @precondition(lambda self: self.world.deliverable())
    @rule(data=st.data(), times=st.integers(1, 8))
    def deliver(self, data: st.DataObject, times: int) -> None:
        for _ in range(times):
            if there := self.world.deliverable():
                self.world.deliver(*data.draw(st.sampled_from(there)))

    @precondition(lambda self: self.world.broken())
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.world.notice_end(*data.draw(st.sampled_from(self.world.broken())))

    @precondition(lambda self: self.world.joinable())
    @rule(data=st.data())
    def join(self, data: st.DataObject) -> None:
        self.world.notice_link(*data.draw(st.sampled_from(self.world.joinable())))

    @precondition(lambda self: self.world.living)
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        self.world.kill(self.any_living(data))

    @precondition(lambda self: self.world.dead())
    @rule(data=st.data())
    def bear(self, data: st.DataObject) -> None:
        term = data.draw(st.integers(0, len(self.world.terms) - 1))
        self.world.bear(data.draw(st.sampled_from(self.world.dead())), term)

    @rule(changed=limits)
    def change(self, changed: DropLimits) -> None:
        self.world.terms.append(changed)

    @precondition(lambda self: self.world.behind())
    @rule(data=st.data())
    def advance(self, data: st.DataObject) -> None:
        at = data.draw(st.sampled_from(self.world.behind()))
        newest = len(self.world.terms) - 1
        self.world.advance(at, data.draw(st.integers(self.world.living[at].term + 1, newest)))

    @rule(data=st.data(), ip=st.sampled_from(IPS), times=st.integers(0, 6))
    def settle(self, data: st.DataObject, ip: str, times: int) -> None:
        self.world.settle()
        for _ in range(times):
            self.world.probe(self.any_living(data), ip)

    @invariant()
    def everybody_knows_its_own(self) -> None:
        if hasattr(self, "world"):
            for processor in self.world.living.values():
                assert processor.tokens.open == len(processor.open)
                assert processor.tokens.waiting == len(processor.waiting)


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(stateful_step_count=50, deadline=None)


class Storm:
    """Random events for long: steps after which everything has changed are rare."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World(self.random.choice((1, 2, 2, 3, 3, 4)), self.limits())
        self.steps: dict[Callable[[], None], int] = {
            self.deliver: 480,
            self.connect: 150,
            self.release: 120,
            self.join: 110,
            self.bear: 55,
            self.advance: 40,
            self.lose: 20,
            self.change: 20,
            self.kill: 5,
            self.settle: 3,
        }

    def blow(self, steps: int) -> None:
        for step in self.random.choices(list(self.steps), list(self.steps.values()), k=steps):
            step()
        self.world.settle()

    def limits(self) -> DropLimits:
        random = self.random
        return DropLimits(
            random.choice((None, None, 0, 1, 2, 3, 4, 5, 6, 9, 12)),
            random.choice((None, None, 0, 1, 2, 3, 5)),
            {ip: random.randrange(8) for ip in IPS if random.random() < 0.2},
        )

    def change(self) -> None:
        self.world.terms.append(self.limits())

    def advance(self) -> None:
        if behind := self.world.behind():
            at, newest = self.random.choice(behind), len(self.world.terms) - 1
            self.world.advance(at, self.random.randint(self.world.living[at].term + 1, newest))

    def kill(self) -> None:
        if self.world.living:
            self.world.kill(self.random.choice(sorted(self.world.living)))

    def bear(self) -> None:
        if dead := self.world.dead():
            newest = len(self.world.terms) - 1
            term = self.random.randint(max(0, newest - 2), newest)
            self.world.bear(self.random.choice(dead), term)

    def lose(self) -> None:
        if broken := self.world.broken():
            self.world.notice_end(*self.random.choice(broken))

    def join(self) -> None:
        if joinable := self.world.joinable():
            self.world.notice_link(*self.random.choice(joinable))

    def connect(self) -> None:
        if self.world.living:
            at = self.random.choice(sorted(self.world.living))
            self.world.connect(at, self.random.choice(IPS))

    def release(self) -> None:
        if there := self.world.there():
            self.world.release(*self.random.choice(there))

    def deliver(self) -> None:
        if deliverable := self.world.deliverable():
            self.world.deliver(*self.random.choice(deliverable))

    def settle(self) -> None:
        self.world.settle()
        for _ in range(self.random.randrange(6)):
            self.world.probe(self.random.randrange(self.world.size), self.random.choice(IPS))


@pytest.mark.parametrize("run", range(30))
def test_connection_storm_never_exceeds_a_limit(seed: int, run: int) -> None:
    Storm(seed * 1000 + run).blow(1500)


def burst(random: Random) -> None:
    """Many connections at once: each rejected one must exceed the limit at any time."""
    limit = random.randint(1, 9)
    both = DropLimits(limit, limit), DropLimits(total=limit), DropLimits(per_ip=limit)
    world = begun(random.randint(1, 4), random.choice(both))
    for _ in range(random.choice((0, 0, 2 * limit))):  # so that tokens are cached
        if random.random() < 0.6 or not world.there():
            world.probe(random.randrange(world.size), HERE)
        else:
            world.release(*random.choice(world.there()))
            world.arrive()
    world.nobody_leaves = True
    coming = random.choice((limit - world.in_use(HERE), 2 * limit))
    while coming or world.deliverable():
        if coming and (random.random() < 0.8 or not world.deliverable()):
            coming -= 1
            world.connect(random.randrange(world.size), HERE)
        else:
            world.deliver(*random.choice(world.deliverable()))
    world.check_books()


def test_concurrent_connections_within_the_limit_are_admitted(seed: int) -> None:
    for run in range(1000):
        burst(Random(seed * 1000 + run))


# Cases of Redpanda's own, and what it gets wrong ------------------------------------------------


def begun(processors: int, *terms: DropLimits) -> World:
    """Processors that are linked, in the first term."""
    world = World(processors, *terms)
    world.arrive()
    return world


def test_close_admits_next_connection_at_total_limit() -> None:
    world = begun(3, DropLimits(total=10))
    for number in range(10):
        assert world.probe(number % 3, IPS[number % 2]) is None
    for at in range(3):
        assert world.probe(at, f"10.0.9.{at}") is ExceededCount.DROPPED
    world.release(*world.there()[0])
    world.arrive()
    assert world.probe(2, "10.0.9.9") is None
    assert world.probe(0, HERE) is ExceededCount.DROPPED


def test_connection_rejected_per_ip_returns_total_token() -> None:
    world = begun(2, DropLimits(total=4, per_ip=2))
    for at, ip in ((0, HERE), (1, HERE), (0, THERE), (1, THERE)):
        assert world.probe(at, ip) is None
    assert world.probe(0, IPS[2]) is ExceededCount.DROPPED
    for at in (0, 1):
        world.release(at, min(world.living[at].open))
    world.arrive()
    assert world.probe(1, IPS[2]) is None
    assert world.probe(1, THERE) is ExceededCount.DROPPED_PER_IP
    assert world.probe(0, HERE) is None


def test_override_without_total_limit_applies_and_returns_tokens() -> None:
    world = begun(2, DropLimits(overrides={HERE: 1}))
    for at in (0, 1, 0):
        assert world.probe(at, HERE) is None
        assert world.probe(1 - at, HERE) is ExceededCount.DROPPED_PER_IP
        assert world.probe(at, THERE) is None
        for connection in world.there():
            world.release(*connection)
        world.arrive()


def test_connection_that_overtakes_a_returned_token_is_rejected() -> None:
    """The one moment at which fewer connections than the limit are open: see ADR 0008."""
    world = begun(3, DropLimits(per_ip=1))
    home = home_of(HERE, 3)
    other = (home + 1) % 3
    assert world.probe(other, HERE) is None
    assert world.probe(home, HERE) is ExceededCount.DROPPED_PER_IP
    world.release(*world.there()[0])
    number = world.connect(home, HERE)
    assert world.outcomes[number] is ExceededCount.DROPPED_PER_IP
    world.deliver(home, other)
    number = world.connect(home, HERE)
    assert world.outcomes[number] is None


def test_lowered_limit_admits_none_until_fewer_are_open() -> None:
    world = begun(4, DropLimits(per_ip=12))
    for number in range(8):
        assert world.probe(number % 4, HERE) is None
    world.terms.append(DropLimits(per_ip=4))
    world.settle()
    left = world.there()
    for open_ones in range(8, 4, -1):
        assert world.in_use(HERE) == open_ones
        for at in range(4):
            assert world.probe(at, HERE) is ExceededCount.DROPPED_PER_IP
        world.release(*left.pop())
        world.arrive()
    assert world.probe(0, HERE) is ExceededCount.DROPPED_PER_IP
    world.release(*left.pop())
    world.arrive()
    assert world.probe(3, HERE) is None
    assert world.probe(2, HERE) is ExceededCount.DROPPED_PER_IP


# Requests for tokens ---------------------------------------------------------------------


def test_without_limit_no_message_is_sent() -> None:
    world = begun(3, DropLimits(overrides={THERE: 5}))
    before = world.sent
    for at in range(3):
        assert world.probe(at, HERE) is None
    assert world.sent == before


def test_zero_limit_rejects_without_request() -> None:
    world = begun(2, DropLimits(per_ip=0))
    before = world.sent
    assert world.probe(1, HERE) is ExceededCount.DROPPED_PER_IP
    assert world.sent == before


def test_connections_after_the_first_need_no_request() -> None:
    world = begun(4, DropLimits(total=80))
    assert world.probe(1, HERE) is None
    before = world.sent
    for at in range(4):
        for _ in range(9):
            assert world.probe(at, THERE) is None
    assert world.sent == before


def test_processor_returns_spare_tokens_on_demand() -> None:
    world = begun(2, DropLimits(total=8))
    for _ in range(8):
        assert world.probe(1, HERE) is None  # The other processor has two of them.
    assert world.probe(0, HERE) is ExceededCount.DROPPED
    before = world.sent
    assert world.probe(1, HERE) is ExceededCount.DROPPED
    assert world.sent - before == 2  # It asks and is refused: no round, they are all in use.


def test_tokens_are_kept_again_after_reclaim_ends() -> None:
    world = begun(2, DropLimits(total=8))
    for number in range(9):
        world.probe(number % 2, HERE)
    for connection in world.there()[:-2]:
        world.release(*connection)
    world.arrive()
    (at, number), _ = world.there()
    world.release(at, number)
    world.arrive()
    before = world.sent
    assert world.probe(at, HERE) is None
    assert world.sent == before


def test_new_term_with_free_tokens_keeps_tokens() -> None:
    world = begun(2, DropLimits(total=8), DropLimits(total=9))
    assert world.probe(1, HERE) is None
    world.settle()
    ((at, number),) = world.there()
    world.release(at, number)
    world.arrive()
    before = world.sent
    assert world.probe(at, HERE) is None
    assert world.sent == before


def test_new_term_does_not_wait_for_dead_processors() -> None:
    world = begun(3, DropLimits(), DropLimits(total=1))
    world.kill(2)
    world.arrive()
    for at in (0, 1):
        world.advance(at, 1)
    number = world.connect(1, HERE)
    world.arrive()
    assert world.outcomes[number] is None


def test_tokens_of_killed_processor_are_free() -> None:
    world = begun(3, DropLimits(total=2, per_ip=2))
    for _ in range(2):
        assert world.probe(2, HERE) is None
    assert world.probe(1, HERE) is ExceededCount.DROPPED
    world.kill(2)
    world.arrive()
    for at in (0, 1):
        assert world.connect(at, HERE) is not None
    world.settle()
    assert world.in_use(HERE) == 2


def test_restarted_home_collects_holdings_before_granting() -> None:
    world = begun(2, DropLimits(total=2))
    assert world.probe(1, HERE) is None
    world.kill(0)
    first, second = world.connect(1, HERE), world.connect(1, HERE)
    world.arrive()
    assert first not in world.outcomes
    world.settle()
    assert [world.outcomes[number] for number in (first, second)] == [None, ExceededCount.DROPPED]


def test_repeated_term_is_ignored() -> None:
    tokens = Tokens(0, 1)
    tokens.enter((1, 1), DropLimits())
    with pytest.raises(ValueError, match="cannot follow"):
        tokens.enter((1, 1), DropLimits())


def test_only_messages_of_the_latest_later_term_are_kept() -> None:
    tokens = Tokens(0, 2)
    tokens.enter((1, 0), DropLimits(total=5))
    tokens.peer_up(1)
    for term in range(1, 9):
        for more in (True, False):
            assert tokens.receive(1, Holdings((1, term), ((TOTAL, 5),), more)) == []
    assert tokens._future_messages == {
        1: [Holdings((1, 8), ((TOTAL, 5),), more) for more in (True, False)],
    }
    tokens.enter((1, 8), DropLimits(total=5))
    assert not tokens._future_messages
    assert tokens.admit(7, HERE) == [Reject(7, ExceededCount.DROPPED)]


def test_memory_per_address_is_about_one_kilobyte() -> None:
    tokens, addresses = Tokens(0, 1), 2000
    tokens.enter((1, 1), DropLimits(10**6, 100))
    ips = [f"10.{number // 256}.{number % 256}.1" for number in range(addresses)]
    tracemalloc.start()
    for number, ip in enumerate(ips):
        assert tokens.admit(number, ip) == [Admit(number)]
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 1200 * addresses


def test_home_of_key_is_constant() -> None:
    assert home_of(TOTAL, 4) == 0
    found = [home_of(f"10.0.0.{number}", 4) for number in range(1, 9)]
    assert found == [3, 1, 3, 0, 2, 0, 2, 3]


def test_keys_are_spread_evenly_over_homes() -> None:
    found = [home_of(f"10.1.{a}.{b}", 5) for a in range(10) for b in range(100)]
    assert all(150 < found.count(home) < 250 for home in range(5))


def test_override_precedes_the_default_limit() -> None:
    limits = DropLimits(9, 3, {"10.0.0.1": 5})
    assert [limits.of(key) for key in (TOTAL, "10.0.0.1", "10.0.0.2")] == [9, 5, 3]
    alone = DropLimits(overrides={"10.0.0.1": 5})
    assert [alone.of(key) for key in (TOTAL, "10.0.0.1", "10.0.0.2")] == [None, 5, None]
