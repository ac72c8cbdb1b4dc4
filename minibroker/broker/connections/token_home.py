"""Grants the tokens of some keys, and records how many each processor holds.

Owns the number of tokens that each processor holds, in use or cached. It must never know
connections, channels or clocks. Invariant: within a term, no more tokens are granted than the
limit, unless more were in use when the term started; then none is granted until enough are
returned. A home grants nothing until every processor has reported what it uses in this term; a
dead processor uses nothing. The home shard's part of Redpanda's ``conn_quota``.
"""

from __future__ import annotations

from collections import deque

from minibroker.broker.connections.token_messages import (
    Action,
    AllowCaching,
    Collect,
    Collected,
    DropLimits,
    Grant,
    Holdings,
    RequestToken,
    ReturnTokens,
    Send,
    Term,
    ToHome,
    TokenDenied,
)


class _Key:
    """State of one key: holders of its tokens, and processors that wait for one.

    There may be many keys, so fields that are mostly empty have types that are small when empty.
    """

    __slots__ = ("collecting", "fresh", "granted", "held", "queue", "reclaim")

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.granted = 0
        """The sum of ``held``."""
        self.reclaim = False
        """Processors return each token that is not in use."""
        self.fresh: frozenset[int] = frozenset()
        """Processors that got tokens in reclaim since the last collection.

        Some tokens may be on their way back while a new connection got another one.
        """
        self.collecting: frozenset[int] = frozenset()
        """Processors that have not answered the current request for unused tokens."""
        self.queue: list[tuple[int, int]] = []
        """Processor and connection number; bounded by the connections that wait in all processors.
        """

    def hold(self, peer: int, count: int) -> None:
        self.held[peer] = self.held.get(peer, 0) + count
        self.granted += count
        if not self.held[peer]:
            del self.held[peer]


class TokenHome:
    """The keys of one processor. Messages to send are added to ``actions``."""

    def __init__(self, processors: int, actions: deque[Action]) -> None:
        self._processors = processors
        self._actions = actions
        self._term: Term = (-1, -1)
        self._limits = DropLimits()
        self._keys: dict[str, _Key] = {}
        self._dead: set[int] = set()
        self._unreported: set[int] = set(range(processors))
        """Processors that have not reported the tokens they use."""

    def enter(self, term: Term, limits: DropLimits) -> None:
        """Start a new term; all former state is void."""
        self._term = term
        self._limits = limits
        self._keys.clear()
        self._unreported = set(range(self._processors)) - self._dead

    def peer_up(self, peer: int) -> None:
        """Note that a processor connected, for the first time or again.

        Grants of this term need not wait for it: after a restart it admits nothing before it has a
        message of this home and has reached the same term.
        """
        self._dead.discard(peer)

    def peer_down(self, peer: int) -> None:
        """Note that a processor died: it no longer holds any token."""
        self._dead.add(peer)
        self._unreported.discard(peer)
        for name, key in list(self._keys.items()):
            key.hold(peer, -key.held.get(peer, 0))
            key.collecting -= {peer}
            key.queue = [waiting for waiting in key.queue if waiting[0] != peer]
            self._serve_queue(name, key)

    def receive(self, peer: int, message: ToHome) -> None:
        """Handle a message of this term."""
        match message:
            case Holdings(_, used, more):
                self._on_holdings(peer, used, more=more)
            case RequestToken(_, name, number):
                key = self._key(name)
                key.queue.append((peer, number))
                self._serve_queue(name, key)
            case ReturnTokens(_, name, count):
                key = self._key(name)
                key.hold(peer, -count)
                self._serve_queue(name, key)
            case Collected(_, name, count):
                key = self._key(name)
                key.collecting -= {peer}
                key.fresh -= {peer}
                key.hold(peer, -count)
                self._serve_queue(name, key)

    def _key(self, name: str) -> _Key:
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = _Key()
        return key

    def _on_holdings(self, peer: int, used: tuple[tuple[str, int], ...], *, more: bool) -> None:
        for name, count in used:
            key = self._key(name)
            key.hold(peer, count)
            # More tokens than the limit may be in use, so none may be reused.
            key.reclaim = True
        if not more:
            self._unreported.discard(peer)
            if not self._unreported:
                for name, key in list(self._keys.items()):
                    self._serve_queue(name, key)

    def _serve_queue(self, name: str, key: _Key) -> None:
        """Answer the waiting processors where possible, and remove an unused key."""
        if self._unreported or key.collecting:
            return
        limit = self._limits.of(name)
        assert limit is not None  # A key without a limit is never reported.
        while key.queue:
            if key.granted < limit:
                self._grant(name, key, limit, key.queue.pop(0)[0])
            elif asked := key.fresh & key.held.keys() if key.reclaim else frozenset(key.held):
                self._collect(name, key, asked)
                return
            else:
                peer, number = key.queue.pop(0)
                self._send(peer, TokenDenied(self._term, name, number))
        if key.reclaim and limit > self._processors and 2 * (limit - key.granted) > limit:
            key.reclaim = False
            for peer in key.held:
                self._send(peer, AllowCaching(self._term, name))
        if not key.granted:
            del self._keys[name]

    def _grant(self, name: str, key: _Key, limit: int, requester: int) -> None:
        receivers, count = [requester], 1
        if not key.granted and not key.reclaim and limit > self._processors:
            # First grant of the key: grant half of all tokens, so that other processors need not
            # request any.
            count = max(1, limit // (2 * self._processors))
            receivers += [
                peer for peer in range(self._processors) if self._is_connected(peer, requester)
            ]
        for peer in receivers:
            key.hold(peer, count)
            if key.reclaim:  # Otherwise the next round collects from all.
                key.fresh |= {peer}
            self._send(peer, Grant(self._term, name, count, key.reclaim))

    def _is_connected(self, peer: int, requester: int) -> bool:
        return peer != requester and peer not in self._dead

    def _collect(self, name: str, key: _Key, asked: frozenset[int]) -> None:
        key.reclaim = True
        key.collecting = asked
        for peer in sorted(asked):
            self._send(peer, Collect(self._term, name))

    def _send(self, peer: int, message: Grant | TokenDenied | Collect | AllowCaching) -> None:
        self._actions.append(Send(peer, message))

    @property
    def keys(self) -> int:
        """Number of keys with holders of tokens or waiting processors."""
        return len(self._keys)
