"""Limits shared by processors that accept connections themselves, by exchanging tokens.

Owns the order of events in one processor: terms, connected peers, and which messages concern its
home and which its shard. It must never wait, send or read a clock. Events in, actions out.
Invariant: a message takes effect in the term that it was sent in, or not at all; a processor admits
nothing before it has a message of every other processor, in a term not later than its own. From
then on each home waits for its report, so no token can be granted twice. Redpanda's ``conn_quota``,
without its two leaks (ADR 0008).
"""

from __future__ import annotations

from collections import deque

from minibroker.broker.connections.token_home import TokenHome
from minibroker.broker.connections.token_messages import (
    Action,
    Collected,
    DropLimits,
    Holdings,
    RequestToken,
    ReturnTokens,
    Send,
    Term,
    TokenMessage,
)
from minibroker.broker.connections.token_shard import TokenShard

_BEFORE_ALL: Term = (-1, -1)


class Tokens:
    """Tokens of one processor. Each event returns the actions to carry out, in order."""

    def __init__(self, me: int, processors: int) -> None:
        """``enter`` must be the first event."""
        self._me = me
        self._up = {me}
        self._silent_peers = set(range(processors)) - {me}
        self._term = _BEFORE_ALL
        self._admits_from = _BEFORE_ALL
        self._admits = False
        self._future_messages: dict[int, list[TokenMessage]] = {}
        """Messages of terms that have not started here.

        Bounded: until this processor answers in such a term, a peer can only report its connections
        and ask for waiting ones.
        """
        self._actions: deque[Action] = deque()
        self._home = TokenHome(processors, self._actions)
        self._shard = TokenShard(processors, self._actions)

    def enter(self, term: Term, limits: DropLimits) -> list[Action]:
        """Start a new term, whose limits are the same in all processors."""
        if term <= self._term:
            raise ValueError(f"term {term} cannot follow term {self._term}")
        self._term = term
        self._home.enter(term, limits)
        self._shard.enter(term, limits, sorted(self._up))
        actions = self._run()
        for peer, messages in list(self._future_messages.items()):
            del self._future_messages[peer]
            for message in messages:
                actions += self._take(peer, message)
        return actions + self._start_admitting_if_ready()

    def peer_up(self, peer: int) -> list[Action]:
        """Note a new link to another processor."""
        self._up.add(peer)
        self._home.peer_up(peer)
        self._shard.peer_up(peer)
        return self._run()

    def peer_down(self, peer: int) -> list[Action]:
        """Note a broken link: the other processor died."""
        self._up.discard(peer)
        self._future_messages.pop(peer, None)
        self._home.peer_down(peer)
        return self._run()

    def receive(self, peer: int, message: TokenMessage) -> list[Action]:
        """Handle a message of another processor."""
        if peer in self._silent_peers:
            self._silent_peers.discard(peer)
            self._admits_from = max(self._admits_from, message.term)
        return self._take(peer, message) + self._start_admitting_if_ready()

    def admit(self, number: int, ip: str) -> list[Action]:
        """Add an accepted connection; ``Admit`` or ``Reject`` follows, now or later."""
        self._shard.admit(number, ip)
        return self._run()

    def release(self, number: int) -> list[Action]:
        """Remove a closed connection, or one that waits no more."""
        self._shard.release(number)
        return self._run()

    def _start_admitting_if_ready(self) -> list[Action]:
        if self._admits or self._silent_peers or self._term < self._admits_from:
            return []
        self._admits = True
        self._shard.start_admitting()
        return self._run()

    def _take(self, peer: int, message: TokenMessage) -> list[Action]:
        if message.term < self._term:
            return []
        if message.term > self._term:
            future_messages = self._future_messages.setdefault(peer, [])
            if future_messages and future_messages[0].term < message.term:
                future_messages.clear()  # The peer has left that term.
            future_messages.append(message)
            return []
        self._dispatch(peer, message)
        return self._run()

    def _dispatch(self, peer: int, message: TokenMessage) -> None:
        if isinstance(message, Holdings | RequestToken | ReturnTokens | Collected):
            self._home.receive(peer, message)
        else:
            self._shard.receive(message)

    def _run(self) -> list[Action]:
        """Return the actions for the caller; messages to this processor take effect at once."""
        actions: list[Action] = []
        while self._actions:
            action = self._actions.popleft()
            if not isinstance(action, Send):
                actions.append(action)
            elif action.peer == self._me:
                self._dispatch(self._me, action.message)
            elif action.peer in self._up:
                actions.append(action)
            # Otherwise it died: it gets everything when it connects again.
        return actions

    @property
    def term(self) -> Term:
        """The current term."""
        return self._term

    @property
    def open(self) -> int:
        """Number of open connections."""
        return self._shard.open

    @property
    def waiting(self) -> int:
        """Number of connections that wait for admission."""
        return self._shard.waiting
