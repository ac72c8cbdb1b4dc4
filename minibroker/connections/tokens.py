"""How processors that accept for themselves hold limits together: with tokens.

Owns the order of things in one processor: terms, who is there, which message concerns the home
and which the shard; it must never wait, send or read a clock. Events in, actions out. Invariant:
a message takes effect in the term that it was sent in or not at all, and a processor lets nobody
in before every other has told it something, in a term no later than its own: from then on each
home waits for what it has to tell, so nothing can be given twice. Redpanda's ``conn_quota``,
without its two leaks (ADR 0008).
"""

from __future__ import annotations

from collections import deque

from minibroker.connections.token_home import TokenHome
from minibroker.connections.token_messages import (
    Action,
    Ask,
    Collected,
    DropLimits,
    Give,
    Holdings,
    Send,
    Term,
    TokenMessage,
)
from minibroker.connections.token_shard import TokenShard

_BEFORE_ALL: Term = (-1, -1)


class Tokens:
    """One processor's part. Every event returns what there is to do, in order."""

    def __init__(self, me: int, processors: int) -> None:
        """``enter`` must be the first event."""
        self._me = me
        self._up = {me}
        self._unheard = set(range(processors)) - {me}
        self._term = _BEFORE_ALL
        self._opens_at = _BEFORE_ALL
        self._is_open = False
        self._later: dict[int, list[TokenMessage]] = {}
        """Messages of terms that have not begun here. Bounded: until it answers in such a term,
        a peer can tell it what it has in use and ask for those who wait there, no more."""
        self._actions: deque[Action] = deque()
        self._home = TokenHome(processors, self._actions)
        self._shard = TokenShard(processors, self._actions)

    def enter(self, term: Term, limits: DropLimits) -> list[Action]:
        """A new term begins, whose limits are the same for every processor."""
        if term <= self._term:
            raise ValueError(f"term {term} cannot follow term {self._term}")
        self._term = term
        self._home.enter(term, limits)
        self._shard.enter(term, limits, sorted(self._up))
        done = self._run()
        for peer, messages in list(self._later.items()):
            del self._later[peer]
            for message in messages:
                done += self._take(peer, message)
        return done + self._open_doors()

    def peer_up(self, peer: int) -> list[Action]:
        """There is a link to another processor now."""
        self._up.add(peer)
        self._home.peer_up(peer)
        self._shard.peer_up(peer)
        return self._run()

    def peer_down(self, peer: int) -> list[Action]:
        """The link broke, so the other processor has died."""
        self._up.discard(peer)
        self._later.pop(peer, None)
        self._home.peer_down(peer)
        return self._run()

    def receive(self, peer: int, message: TokenMessage) -> list[Action]:
        """Something came over the link."""
        if peer in self._unheard:
            self._unheard.discard(peer)
            self._opens_at = max(self._opens_at, message.term)
        return self._take(peer, message) + self._open_doors()

    def admit(self, number: int, ip: str) -> list[Action]:
        """A connection was accepted; ``Admit`` or ``TurnAway`` follows, now or later."""
        self._shard.admit(number, ip)
        return self._run()

    def release(self, number: int) -> list[Action]:
        """A connection is closed, or does not wait any more."""
        self._shard.release(number)
        return self._run()

    def _open_doors(self) -> list[Action]:
        if self._is_open or self._unheard or self._term < self._opens_at:
            return []
        self._is_open = True
        self._shard.open_doors()
        return self._run()

    def _take(self, peer: int, message: TokenMessage) -> list[Action]:
        if message.term < self._term:
            return []
        if message.term > self._term:
            kept = self._later.setdefault(peer, [])
            if kept and kept[0].term < message.term:
                kept.clear()  # The peer itself has done with that term.
            kept.append(message)
            return []
        self._dispatch(peer, message)
        return self._run()

    def _dispatch(self, peer: int, message: TokenMessage) -> None:
        if isinstance(message, Holdings | Ask | Give | Collected):
            self._home.receive(peer, message)
        else:
            self._shard.receive(message)

    def _run(self) -> list[Action]:
        """What is to be done outside; messages to this processor itself take effect at once."""
        done: list[Action] = []
        while self._actions:
            action = self._actions.popleft()
            if not isinstance(action, Send):
                done.append(action)
            elif action.peer == self._me:
                self._dispatch(self._me, action.message)
            elif action.peer in self._up:
                done.append(action)
            # Else it has died: it will be told everything when it is back.
        return done

    @property
    def term(self) -> Term:
        """The present term."""
        return self._term

    @property
    def open(self) -> int:
        """Connections that were let in and are not closed."""
        return self._shard.open

    @property
    def waiting(self) -> int:
        """Newcomers that are neither let in nor turned away yet."""
        return self._shard.waiting
