"""Which requests get memory, wait or are evicted; at random and one rule at a time."""

from __future__ import annotations

from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minibroker.runtime import request_memory
from minibroker.runtime.request_memory import (
    ARRIVAL_S,
    GRACE_S,
    SMALL_REGION_BYTES,
    SMALL_REQUEST_BYTES_MAX,
    Claim,
    Extent,
    Extents,
    RequestMemory,
    TooManyWaiting,
)

MB = 1_000_000
LARGE = 100 * MB
SMALL = SMALL_REQUEST_BYTES_MAX
ADDRESS_MAX = LARGE // 2
ATTACKER, HONEST = "10.0.0.1", "10.0.0.2"

_numbers = count()


class Books:
    """Request memory of which a test plays the connections."""

    def __init__(self, large: int = LARGE, address_max: int | None = None) -> None:
        self.memory = RequestMemory(large, address_max)
        self.now = 0.0
        self.came: dict[Claim, int] = {}

    def claim(self, size: int, address: str = ATTACKER, *, is_complete: bool = False) -> Claim:
        claim = Claim(next(_numbers), address, size, is_complete=is_complete)
        if self.memory.claim(claim):
            claim.since = self.now
        return claim

    def free(self, claim: Claim) -> list[Claim]:
        if not claim.is_complete:
            self.memory.finish(claim)
        assert claim.start is not None
        self.memory.give(claim.start, claim.reserved)
        return self.grant()

    def grant(self) -> list[Claim]:
        granted = self.memory.grant()
        for claim in granted:
            claim.since = self.now
        return granted

    def evict(self) -> list[Claim]:
        return self.memory.evict(self.now, lambda claim: self.came.get(claim, 0))


def waits(claim: Claim) -> bool:
    return claim.start is None


def test_small_request_while_large_claims_hold_and_want_all_is_granted_at_once() -> None:
    books = Books()
    region_used, waiter = books.claim(LARGE), books.claim(LARGE)
    assert (waits(region_used), waits(waiter)) == (False, True)
    assert books.memory.take(SMALL) is not None
    assert not waits(books.claim(SMALL, HONEST))


def test_small_request_without_room_in_its_region_takes_large_memory() -> None:
    books = Books()
    addresses = map(str, count())
    for _ in range(SMALL_REGION_BYTES // SMALL):
        start = books.memory.take(SMALL)
        assert start is not None
        assert start < SMALL_REGION_BYTES
    start = books.memory.take(SMALL)
    assert start is not None
    assert start >= SMALL_REGION_BYTES
    assert not waits(books.claim(SMALL, next(addresses)))


def test_small_request_does_not_take_large_memory_that_a_large_one_waits_for() -> None:
    books = Books()
    while books.memory.used < SMALL_REGION_BYTES:
        assert books.memory.take(SMALL) is not None
    books.claim(LARGE - SMALL)
    large = books.claim(SMALL + 1, HONEST)
    assert waits(large)
    assert books.memory.take(SMALL) is None


def test_unfinished_small_claims_of_one_address_leave_half_of_the_small_region() -> None:
    books = Books()
    claims = [books.claim(SMALL) for _ in range(1000)]
    lying_in_small = [c for c in claims if c.start is not None and c.start < SMALL_REGION_BYTES]
    assert len(lying_in_small) == SMALL_REGION_BYTES // SMALL // 2
    books.claim(LARGE, HONEST)  # Nothing small takes large memory from now on.
    for _ in range(SMALL_REGION_BYTES // SMALL // 2):
        assert books.memory.take(SMALL) is not None


def test_address_at_its_limit_waits_and_others_do_not() -> None:
    books = Books()
    first, second = books.claim(40 * MB), books.claim(40 * MB)
    assert (waits(first), waits(second)) == (False, True)
    assert not waits(books.claim(40 * MB, HONEST))
    assert books.free(first) == [second]


def test_address_alone_on_listener_exceeds_no_other_limit() -> None:
    assert not waits(Books(address_max=1).claim(LARGE))


def test_finished_claim_no_longer_counts_against_its_address() -> None:
    books = Books()
    first, second = books.claim(40 * MB), books.claim(40 * MB)
    books.memory.finish(first)
    assert books.grant() == [second]


def test_waiting_addresses_are_granted_in_turn() -> None:
    books = Books()
    region_used = books.claim(LARGE, "holder")
    attackers = [books.claim(LARGE) for _ in range(20)]
    honest = [books.claim(LARGE, HONEST) for _ in range(2)]
    order = []
    while granted := books.free(region_used):
        [region_used] = granted
        order.append(region_used)
    assert order[:4] == [attackers[0], honest[0], attackers[1], honest[1]]
    assert order[4:] == attackers[2:]


def test_waiting_addresses_far_below_their_limits_are_granted_in_turn() -> None:
    books = Books(address_max=LARGE)
    region_used = books.claim(LARGE, "holder")
    attackers = [books.claim(20 * MB) for _ in range(4)]
    honest = [books.claim(20 * MB, HONEST) for _ in range(2)]
    order = [attackers[0], honest[0], attackers[1], honest[1], attackers[2]]
    assert books.free(region_used) == order


def test_large_waiter_is_not_overtaken_by_smaller_ones() -> None:
    books = Books()
    holders = [books.claim(20 * MB, str(number)) for number in range(5)]
    large = books.claim(60 * MB, HONEST)
    for region_used in holders[:2]:
        assert books.free(region_used) == []
        assert waits(books.claim(10 * MB, ATTACKER))
    assert books.free(holders[2])[0] is large


def test_complete_request_does_not_wait_for_claims_at_the_address_limit() -> None:
    books = Books()
    first = books.claim(40 * MB)
    books.claim(40 * MB, HONEST)
    assert waits(books.claim(40 * MB))
    is_complete = books.claim(20 * MB, is_complete=True)
    assert not waits(is_complete)
    books.free(is_complete)
    filler = books.claim(20 * MB, "filler")
    waiting = books.claim(20 * MB, is_complete=True)
    assert waits(waiting)
    assert waiting in books.free(filler)
    assert not waits(first)


def test_abandoned_claim_unblocks_the_next() -> None:
    books = Books()
    books.claim(60 * MB)
    large, small = books.claim(60 * MB, HONEST), books.claim(30 * MB, "third")
    assert waits(small)
    books.memory.abandon(large)
    assert books.grant() == [small]
    assert books.memory.waiting == 0


def test_waiting_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_memory, "WAITING_MAX", 1)
    books = Books()
    books.claim(LARGE)
    books.claim(LARGE)
    with pytest.raises(TooManyWaiting, match="1 requests wait"):
        books.claim(LARGE)


def test_late_claim_is_evicted_only_while_others_wait() -> None:
    books = Books()
    late = books.claim(LARGE)
    books.now = 1000.0
    assert books.evict() == []
    books.claim(MB, HONEST)
    assert books.evict() == [late]


def test_late_claim_is_evicted_only_after_the_grace() -> None:
    books = Books()
    late = books.claim(LARGE)
    books.claim(MB, HONEST)
    books.now = GRACE_S * 0.99
    assert books.evict() == []
    books.now = GRACE_S
    assert books.evict() == [late]


def test_claim_that_arrives_in_time_is_not_evicted() -> None:
    books = Books()
    claim = books.claim(60 * MB)
    books.claim(60 * MB, HONEST)
    for second in range(1, int(ARRIVAL_S)):
        books.now = float(second)
        books.came[claim] = 2 * MB * second
        assert books.evict() == []
        books.came[claim] -= 1
        assert books.evict() == [claim]
    books.now = ARRIVAL_S + 1
    books.came[claim] = 60 * MB - 1
    assert books.evict() == [claim], "no claim is kept longer while others wait"


def test_slowest_claims_are_evicted_and_no_more_than_needed() -> None:
    books = Books()
    claims = [books.claim(10 * MB, str(number)) for number in range(10)]
    books.now = 2.0
    for number, claim in enumerate(claims):
        books.came[claim] = 1000 * (number * 7 % 10)
    books.claim(15 * MB, HONEST)
    assert sorted(books.came[claim] for claim in books.evict()) == [0, 1000]


def test_claims_of_others_are_not_evicted_for_an_address_at_its_limit() -> None:
    books = Books()
    mine = books.claim(40 * MB)
    books.claim(40 * MB, HONEST)
    assert waits(books.claim(40 * MB))
    books.now = 2.0
    assert books.evict() == [mine]


def test_small_claims_are_evicted_for_small_requests() -> None:
    books = Books()
    while not waits(books.claim(SMALL, str(books.memory.used % 3))):
        pass
    books.now = 2.0
    assert waits(books.claim(SMALL, HONEST, is_complete=True))
    assert books.evict()


def test_small_claim_in_large_memory_is_evicted_for_small_requests() -> None:
    books = Books(MB, MB)
    while books.memory.used < SMALL_REQUEST_BYTES_MAX * (MB // SMALL_REQUEST_BYTES_MAX):
        assert books.memory.take(SMALL) is not None
    late: list[Claim] = []
    while not waits(claim := books.claim(SMALL, str(len(late)))):
        late.append(claim)
    books.memory.abandon(claim)
    assert late
    books.now = 2.0
    assert waits(books.claim(SMALL, HONEST, is_complete=True))
    [evicted] = books.evict()
    assert evicted in late


class Histories(RuleBasedStateMachine):
    """Any number of connections in any order, against what must always hold."""

    @initialize(large=st.sampled_from([64 * 1024, MB, 20 * MB]))
    def begin(self, large: int) -> None:
        self.large = large
        self.books = Books(large)
        self.taken: list[tuple[int, int]] = []
        self.lying: list[Claim] = []
        self.waiting: list[Claim] = []

    def note(self, granted: list[Claim]) -> None:
        for claim in granted:
            self.waiting.remove(claim)
            self.lying.append(claim)

    @rule(size=st.integers(1, SMALL))
    def take(self, size: int) -> None:
        reserved = request_memory.aligned(size)
        if (start := self.books.memory.take(reserved)) is not None:
            self.taken.append((start, reserved))

    @precondition(lambda self: self.taken)
    @rule(number=st.integers(0))
    def give(self, number: int) -> None:
        self.books.memory.give(*self.taken.pop(number % len(self.taken)))
        self.note(self.books.grant())

    @rule(
        share=st.one_of(st.floats(0, 1), st.floats(0, 0.01)),
        address=st.sampled_from("abc"),
        is_complete=st.booleans(),
    )
    def claim(self, share: float, address: str, is_complete: bool) -> None:
        claim = self.books.claim(max(1, int(self.large * share)), address, is_complete=is_complete)
        (self.waiting if waits(claim) else self.lying).append(claim)

    @precondition(lambda self: self.lying)
    @rule(number=st.integers(0))
    def free(self, number: int) -> None:
        self.note(self.books.free(self.lying.pop(number % len(self.lying))))

    @precondition(lambda self: self.waiting)
    @rule(number=st.integers(0))
    def abandon(self, number: int) -> None:
        self.books.memory.abandon(self.waiting.pop(number % len(self.waiting)))
        self.note(self.books.grant())

    @rule(seconds=st.floats(0, 10), share=st.floats(0, 1))
    def evict(self, seconds: float, share: float) -> None:
        books = self.books
        books.now += seconds
        for claim in self.lying[::2]:
            books.came[claim] = max(books.came.get(claim, 0), int(claim.size * share))
        for claim in books.evict():
            assert claim in self.lying
            assert not claim.is_complete
            assert claim.since is not None
            elapsed = books.now - claim.since
            assert elapsed >= GRACE_S
            assert books.came.get(claim, 0) * ARRIVAL_S < claim.size * elapsed * 1.000001
            assert self.waiting
            self.lying.remove(claim)
            self.note(books.free(claim))

    @invariant()
    def nothing_overlaps(self) -> None:
        if not hasattr(self, "books"):
            return
        stretches = sorted(self.taken + [(c.start or 0, c.reserved) for c in self.lying])
        end = 0
        for start, reserved in stretches:
            assert start >= end
            end = start + reserved
        assert end <= self.books.memory.size
        assert self.books.memory.used == sum(reserved for _, reserved in stretches)
        assert self.books.memory.waiting == len(self.waiting)

    @invariant()
    def no_address_is_above_its_limits(self) -> None:
        if not hasattr(self, "books"):
            return
        small_bytes = self.books.memory.size - self.large
        for address in "abc":
            unfinished = [c for c in self.lying if c.address == address and not c.is_complete]
            for limit, region in [
                (small_bytes // 2, [c for c in unfinished if (c.start or 0) < small_bytes]),
                (self.large // 2, [c for c in unfinished if (c.start or 0) >= small_bytes]),
            ]:
                assert len(region) <= 1 or sum(c.reserved for c in region) <= limit

    def teardown(self) -> None:
        """Every waiter is granted in the end if no more come and every holder ends."""
        if not hasattr(self, "books"):
            return
        for start, reserved in self.taken:
            self.books.memory.give(start, reserved)
            self.note(self.books.grant())
        while self.lying:
            self.note(self.books.free(self.lying.pop(0)))
        assert self.waiting == []
        assert self.books.memory.used == self.books.memory.waiting == 0


TestHistories = Histories.TestCase


@given(
    st.lists(st.integers(1, LARGE), min_size=1, max_size=20),
    st.integers(1, 5),
    st.integers(1, LARGE),
)
def test_large_waiter_among_endless_attackers_is_granted_within_two_rounds(
    sizes: list[int], addresses: int, size: int
) -> None:
    """Attackers that are evicted come back at once, with any sizes and from several addresses."""
    books = Books()
    lying: list[Claim] = []
    numbers = count()

    def attack() -> None:
        number = next(numbers)
        claim = books.claim(sizes[number % len(sizes)], str(number % addresses))
        if not waits(claim):
            lying.append(claim)

    for _ in range(40):
        attack()
    honest = books.claim(size, HONEST)
    rounds = 0
    while waits(honest):
        rounds += 1
        assert rounds <= addresses + 1
        books.now += GRACE_S
        evicted = books.evict()
        assert evicted
        for claim in evicted:
            lying.remove(claim)
            lying += [other for other in books.free(claim) if other is not honest]
            attack()


SIZE = 1000

# Positive: take so much. Negative: give back one of the live stretches.
histories = st.lists(st.one_of(st.integers(1, SIZE), st.integers(-100, -1)), max_size=200)


def test_fresh_range_is_one_extent() -> None:
    assert Extents(SIZE).free() == [Extent(0, SIZE)]


def test_complete_range_can_be_taken_and_released() -> None:
    extents = Extents(SIZE)
    assert extents.take(SIZE) == 0
    assert extents.free() == []
    assert extents.take(1) is None
    assert extents.give(0, SIZE) == Extent(0, SIZE)
    assert extents.take(SIZE + 1) is None
    assert extents.free() == [Extent(0, SIZE)]


def test_extent_below_the_next_power_of_two_is_found() -> None:
    """700 is requested and 1000 is free: both are between 512 and 1024."""
    assert Extents(SIZE).take(700) == 0


def test_giving_back_joins_both_neighbours() -> None:
    extents = Extents(300)
    starts = {extents.take(100) for _ in range(3)}
    assert starts == {0, 100, 200}
    assert extents.give(0, 100) == Extent(0, 100)
    assert extents.give(200, 100) == Extent(200, 100)
    assert extents.give(100, 100) == Extent(0, 300)


@given(histories)
def test_allocated_regions_never_overlap_and_none_is_lost(history: list[int]) -> None:
    extents = Extents(SIZE)
    live: list[Extent] = []
    for action in history:
        if action > 0:
            longest = max((extent.size for extent in extents.free()), default=0)
            start = extents.take(action)
            assert (start is not None) == (action <= longest), "refused only if nothing fits"
            if start is not None:
                live.append(Extent(start, action))
        elif live:
            given_back = live.pop(action % len(live))
            merged = extents.give(*given_back)
            assert merged in extents.free()
        covered = sorted(live + extents.free())
        assert covered[0].start == 0
        assert covered[-1].start + covered[-1].size == SIZE
        assert all(a.start + a.size == b.start for a, b in pairwise(covered)), "no gap, no overlap"
        free = extents.free()
        assert all(a.start + a.size < b.start for a, b in pairwise(free)), "neighbours are joined"
    for stretch in live:
        extents.give(*stretch)
    assert extents.free() == [Extent(0, SIZE)]
