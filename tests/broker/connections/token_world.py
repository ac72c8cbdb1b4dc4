"""Tokens of several processors, the links between them, and the possible next events.

Owns the truth that no processor knows: which connections are open anywhere. Links deliver in order
and one message at a time; a killed processor's last messages may still arrive, or be lost, before
its end is noticed; each side notices a new link at its own moment. Invariant, checked at every
step: no connection is admitted while as many are open as the highest limit of all terms between
those of the last and the first living processor.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Final

from minibroker.broker.connections.limits import ExceededCount
from minibroker.broker.connections.tokens import (
    TOTAL,
    Action,
    Admit,
    DropLimits,
    Send,
    TokenMessage,
    Tokens,
    home_of,
)

ENOUGH: Final = 5_000
"""Messages after which nothing new can be under way, as far as tests go."""


class Link:
    """What joins one life of a processor with one of another."""

    def __init__(self, ends: tuple[int, int]) -> None:
        self.up: set[int] = set()
        self.broken = False
        self.to: dict[int, deque[TokenMessage]] = {end: deque() for end in ends}


class Processor:
    """One life of one."""

    def __init__(self, me: int, processors: int, term: int) -> None:
        self.tokens = Tokens(me, processors)
        self.term = term
        self.links: dict[int, Link] = {}
        """By peer, those that this side has noticed."""
        self.open: dict[int, str] = {}
        self.waiting: dict[int, str] = {}


class World:
    """All of them. ``terms`` are the limits of every term there has been."""

    def __init__(self, processors: int, *terms: DropLimits) -> None:
        self.size = processors
        self.terms = list(terms)
        self.living: dict[int, Processor] = {}
        self.dialled: dict[tuple[int, int], Link] = {}
        """The newest link of each pair, if both live."""
        self.outcomes: dict[int, ExceededCount | None] = {}
        """Outcomes of the latest connections."""
        self.sent = 0
        self.nobody_leaves = False
        """From now on every rejection must be caused by the limit."""
        for number in range(processors):
            self.bear(number, 0)

    # What may happen ----------------------------------------------------------------------------

    def connect(self, at: int, ip: str) -> int:
        """Connect; return the number of the new connection."""
        used = {*self.living[at].open, *self.living[at].waiting}
        number = next(free for free in range(at, 10**6, self.size) if free not in used)
        self.outcomes.pop(number, None)
        self.living[at].waiting[number] = ip
        self.do(at, self.living[at].tokens.admit(number, ip))
        return number

    def release(self, at: int, number: int) -> None:
        """Close a connection, open or waiting."""
        processor = self.living[at]
        assert processor.open.pop(number, None) or processor.waiting.pop(number, None)
        self.do(at, processor.tokens.release(number))

    def deliver(self, to: int, peer: int) -> None:
        """The next message of a link, or the notice that it broke."""
        link = self.living[to].links[peer]
        if link.to[to]:
            self.do(to, self.living[to].tokens.receive(peer, link.to[to].popleft()))
        else:
            assert link.broken
            self.notice_end(to, peer)

    def notice_end(self, to: int, peer: int) -> None:
        """The link broke; what had not arrived will not."""
        del self.living[to].links[peer]
        self.do(to, self.living[to].tokens.peer_down(peer))

    def notice_link(self, at: int, peer: int) -> None:
        """One side has the new link now."""
        link = self.dialled[min(at, peer), max(at, peer)]
        link.up.add(at)
        self.living[at].links[peer] = link
        self.do(at, self.living[at].tokens.peer_up(peer))

    def kill(self, victim: int) -> None:
        del self.living[victim]
        for peer in range(self.size):
            link = self.dialled.pop((min(peer, victim), max(peer, victim)), None)
            if link is not None:
                link.broken = True
                link.to[victim].clear()

    def bear(self, number: int, term: int) -> None:
        self.living[number] = Processor(number, self.size, term)
        for peer in self.living:
            if peer != number:
                ends = (min(peer, number), max(peer, number))
                self.dialled[ends] = Link(ends)
        self.do(number, self.living[number].tokens.enter((1, term), self.terms[term]))

    def advance(self, at: int, term: int) -> None:
        """A later term reaches a processor."""
        processor = self.living[at]
        processor.term = term
        self.do(at, processor.tokens.enter((1, term), self.terms[term]))

    # What may happen next -------------------------------------------------------------------------

    def deliverable(self) -> list[tuple[int, int]]:
        return [
            (to, peer)
            for to, processor in sorted(self.living.items())
            for peer, link in sorted(processor.links.items())
            if link.to[to] or link.broken
        ]

    def broken(self) -> list[tuple[int, int]]:
        return [
            (to, peer)
            for to, processor in sorted(self.living.items())
            for peer, link in sorted(processor.links.items())
            if link.broken
        ]

    def joinable(self) -> list[tuple[int, int]]:
        """Return the pairs that may notice a new link: not before the end of the old one."""
        return [
            (at, peer)
            for ends, link in sorted(self.dialled.items())
            for at, peer in (ends, ends[::-1])
            if at not in link.up and peer not in self.living[at].links
        ]

    def there(self) -> list[tuple[int, int]]:
        """Connections, open or waiting, with the processor they are at."""
        return [
            (at, number)
            for at, processor in sorted(self.living.items())
            for number in sorted({*processor.open, *processor.waiting})
        ]

    def dead(self) -> list[int]:
        return sorted(set(range(self.size)) - set(self.living))

    def behind(self) -> list[int]:
        """Return the processors that are not in the latest term."""
        newest = len(self.terms) - 1
        return [at for at, processor in sorted(self.living.items()) if processor.term < newest]

    def settle(self) -> None:
        """Let every processor live, be linked and be in the latest term, and deliver all
        messages.
        """
        newest = len(self.terms) - 1
        for number in self.dead():
            self.bear(number, newest)
        self.arrive()
        for number in self.behind():
            self.advance(number, newest)
        self.arrive()
        self.check_books()

    def arrive(self) -> None:
        """Every message arrives, and every link is noticed."""
        for _ in range(ENOUGH):
            for at, peer in self.joinable():
                self.notice_link(at, peer)
            deliverable = self.deliverable()
            if not deliverable:
                return
            self.deliver(*deliverable[0])
        raise AssertionError("they never come to an end")

    # Truth ----------------------------------------------------------------------------------------

    def do(self, at: int, actions: list[Action]) -> None:
        processor = self.living[at]
        for action in actions:
            if isinstance(action, Send):
                self.sent += 1
                link = processor.links[action.peer]
                if not link.broken:
                    link.to[action.peer].append(action.message)
            elif isinstance(action, Admit):
                ip = processor.waiting.pop(action.number)
                for key in (TOTAL, ip):
                    assert self.in_use(key) < self.highest(key), (action, key)
                processor.open[action.number] = ip
                self.outcomes[action.number] = None
            else:
                ip = processor.waiting.pop(action.number)
                key = TOTAL if action.refusal is ExceededCount.DROPPED else ip
                limit = self.terms[processor.term].of(key)
                assert limit is not None
                assert not self.nobody_leaves or self.demand(key) >= limit, (action, key)
                self.outcomes[action.number] = action.refusal

    def in_use(self, key: str) -> int:
        return sum(
            key in (TOTAL, ip)
            for processor in self.living.values()
            for ip in processor.open.values()
        )

    def demand(self, key: str) -> int:
        """Those that are open, and those that would like to be."""
        waiting = [ip for processor in self.living.values() for ip in processor.waiting.values()]
        return self.in_use(key) + sum(key in (TOTAL, ip) for ip in waiting)

    def highest(self, key: str) -> float:
        present = [processor.term for processor in self.living.values()]
        # A processor that reached a later term may have admitted what the terms in between allowed.
        limits = [terms.of(key) for terms in self.terms[min(present) : max(present) + 1]]
        return max(math.inf if limit is None else limit for limit in limits)

    def check_books(self) -> None:
        """Check that every home knows exactly what each processor has, when nothing is in
        flight.
        """
        limits = self.terms[-1]
        for at, processor in self.living.items():
            assert not processor.waiting
            shard = processor.tokens._shard
            assert shard._open == processor.open
            home = processor.tokens._home
            assert not home._unreported
            for name, account in shard._accounts.items():
                if limits.of(name) is not None:
                    keeper = self.living[home_of(name, self.size)].tokens._home
                    known = keeper._keys[name].held.get(at, 0)
                    assert known == account.used + account.cached > 0
                    assert not (account.reclaim and account.cached)
                assert account.used == sum(name in (TOTAL, ip) for ip in processor.open.values())
            for name, key in home._keys.items():
                assert not key.queue
                assert key.granted == sum(key.held.values()) > 0
                for peer in key.held:
                    assert name in self.living[peer].tokens._shard._accounts

    def expected(self, ip: str) -> ExceededCount | None:
        """Return the expected outcome of a new connection when nothing is in flight."""
        limits = self.terms[-1]
        for key, refusal in ((TOTAL, ExceededCount.DROPPED), (ip, ExceededCount.DROPPED_PER_IP)):
            limit = limits.of(key)
            if limit is not None and self.in_use(key) >= limit:
                return refusal
        return None

    def probe(self, at: int, ip: str) -> ExceededCount | None:
        """Return the outcome of a new connection when all its messages have arrived."""
        expected = self.expected(ip)
        number = self.connect(at, ip)
        self.arrive()
        assert self.outcomes[number] == expected, (self.terms[-1], expected)
        self.check_books()
        return expected


def frozen(thing: Any) -> Any:
    """A value that is equal for equal states, and hashable."""
    if isinstance(thing, dict):
        return tuple((key, frozen(value)) for key, value in thing.items())
    if isinstance(thing, set | frozenset):
        return tuple(sorted(thing))
    if isinstance(thing, list | deque):
        return tuple(map(frozen, thing))
    if isinstance(thing, tuple | str | int) or thing is None:
        return thing if not isinstance(thing, tuple) else tuple(map(frozen, thing))
    slots = getattr(type(thing), "__slots__", None)
    names = slots if slots is not None else sorted(vars(thing))
    return tuple(frozen(getattr(thing, name)) for name in names)
