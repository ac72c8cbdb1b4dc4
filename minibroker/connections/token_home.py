"""The home of some keys: it gives their tokens out, and knows who has how many.

Owns the books of what each processor holds, in use or cached; it must never know a connection,
a channel or a clock. Invariant: within a term no more tokens are out than the limit says, unless
more were in use when the term began, and then none is given until that is over. A home gives
nothing before every processor has told what it has in use in this term; who died has nothing.
The home shard's half of Redpanda's ``conn_quota``.
"""

from __future__ import annotations

from collections import deque

from minibroker.connections.token_messages import (
    Action,
    Ask,
    Collect,
    Collected,
    DropLimits,
    Give,
    Grant,
    Holdings,
    Relax,
    Send,
    Term,
    ToHome,
    TokenDenied,
)


class _Key:
    """One key: who holds how many of its tokens, and who waits for one. There may be many of them,
    so what is mostly empty is of a kind that is small when it is.
    """

    __slots__ = ("collecting", "fresh", "held", "out", "queue", "reclaim")

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.out = 0
        """The sum of ``held``."""
        self.reclaim = False
        """Nobody keeps a token that is not in use."""
        self.fresh: frozenset[int] = frozenset()
        """Who was given tokens in reclaim since it was last asked, some of which may be on their
        way back: a newcomer may have got another one meanwhile."""
        self.collecting: frozenset[int] = frozenset()
        """Who has not answered yet in a round that asks for what is not in use."""
        self.queue: list[tuple[int, int]] = []
        """Processor and number of newcomers. Bounded by those that wait at all processors."""

    def hold(self, peer: int, count: int) -> None:
        self.held[peer] = self.held.get(peer, 0) + count
        self.out += count
        if not self.held[peer]:
            del self.held[peer]


class TokenHome:
    """The keys of one processor. What there is to send is added to ``actions``."""

    def __init__(self, processors: int, actions: deque[Action]) -> None:
        self._processors = processors
        self._actions = actions
        self._term: Term = (-1, -1)
        self._limits = DropLimits()
        self._keys: dict[str, _Key] = {}
        self._gone: set[int] = set()
        self._awaited: set[int] = set(range(processors))
        """Who has not told yet what it has in use."""

    def enter(self, term: Term, limits: DropLimits) -> None:
        """A new term begins: all that was known before is void."""
        self._term = term
        self._limits = limits
        self._keys.clear()
        self._awaited = set(range(self._processors)) - self._gone

    def peer_up(self, peer: int) -> None:
        """A processor is there, for the first time or again.

        What is given in this term need not wait for it: in a new life it lets nobody in before it
        has heard from this home and has come to the same term.
        """
        self._gone.discard(peer)

    def peer_down(self, peer: int) -> None:
        """A processor has died, and holds nothing any more."""
        self._gone.add(peer)
        self._awaited.discard(peer)
        for name, key in list(self._keys.items()):
            key.hold(peer, -key.held.get(peer, 0))
            key.collecting -= {peer}
            key.queue = [waiting for waiting in key.queue if waiting[0] != peer]
            self._go_on(name, key)

    def receive(self, peer: int, message: ToHome) -> None:
        """Takes a message of this term."""
        match message:
            case Holdings(_, used, more):
                self._told(peer, used, more=more)
            case Ask(_, name, number):
                key = self._key(name)
                key.queue.append((peer, number))
                self._go_on(name, key)
            case Give(_, name, count):
                key = self._key(name)
                key.hold(peer, -count)
                self._go_on(name, key)
            case Collected(_, name, count):
                key = self._key(name)
                key.collecting -= {peer}
                key.fresh -= {peer}
                key.hold(peer, -count)
                self._go_on(name, key)

    def _key(self, name: str) -> _Key:
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = _Key()
        return key

    def _told(self, peer: int, used: tuple[tuple[str, int], ...], *, more: bool) -> None:
        for name, count in used:
            key = self._key(name)
            key.hold(peer, count)
            # There may be more of them than the limit says, so none may be used twice.
            key.reclaim = True
        if not more:
            self._awaited.discard(peer)
            if not self._awaited:
                for name, key in list(self._keys.items()):
                    self._go_on(name, key)

    def _go_on(self, name: str, key: _Key) -> None:
        """Answers whom it can, and forgets the key if that was all."""
        if self._awaited or key.collecting:
            return
        limit = self._limits.of(name)
        assert limit is not None  # Nobody tells of a key without a limit.
        while key.queue:
            if key.out < limit:
                self._grant(name, key, limit, key.queue.pop(0)[0])
            elif asked := key.fresh & key.held.keys() if key.reclaim else frozenset(key.held):
                self._collect(name, key, asked)
                return
            else:
                peer, number = key.queue.pop(0)
                self._send(peer, TokenDenied(self._term, name, number))
        if key.reclaim and limit > self._processors and 2 * (limit - key.out) > limit:
            key.reclaim = False
            for peer in key.held:
                self._send(peer, Relax(self._term, name))
        if not key.out:
            del self._keys[name]

    def _grant(self, name: str, key: _Key, limit: int, asker: int) -> None:
        receivers, count = [asker], 1
        if not key.out and not key.reclaim and limit > self._processors:
            # The first of its key: half of all tokens go round, so that others need not ask.
            count = max(1, limit // (2 * self._processors))
            receivers += [peer for peer in range(self._processors) if self._is_there(peer, asker)]
        for peer in receivers:
            key.hold(peer, count)
            if key.reclaim:  # Else all are asked in the next round anyway.
                key.fresh |= {peer}
            self._send(peer, Grant(self._term, name, count, key.reclaim))

    def _is_there(self, peer: int, asker: int) -> bool:
        return peer != asker and peer not in self._gone

    def _collect(self, name: str, key: _Key, asked: frozenset[int]) -> None:
        key.reclaim = True
        key.collecting = asked
        for peer in sorted(asked):
            self._send(peer, Collect(self._term, name))

    def _send(self, peer: int, message: Grant | TokenDenied | Collect | Relax) -> None:
        self._actions.append(Send(peer, message))

    @property
    def keys(self) -> int:
        """Keys of which somebody holds or wants a token."""
        return len(self._keys)
