"""Limits shared by processors that accept connections themselves, by exchanging tokens.

Owns the order of events in one processor: terms, connected peers, and which messages concern its
home and which its shard. It must never wait, send or read a clock. Events in, actions out.
Invariant: a message takes effect in the term that it was sent in, or not at all; a processor admits
nothing before it has a message of every other processor, in a term not later than its own. From
then on each home waits for its report, so no token can be granted twice. Redpanda's ``conn_quota``,
without its two leaks (ADR 0008).
"""

from __future__ import annotations

import zlib
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from minibroker.broker.connections.limits import ExceededCount

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


# --------------------------------------------------------------------------------------------------
# Messages between processors about tokens, and the limits that tokens represent.
#
# Owns the shapes of messages, and which processor is the home of a key. It must never know how many
# tokens a processor has. A key is an address or ``TOTAL``; the home of a key grants its tokens to
# the shards. Invariant: each message carries its term, because only within a term all processors
# have the same limits. After Redpanda's RFC of 2022-02-07 on connections per address.

TOTAL: Final = ""
"""Key of the limit of all addresses together."""

HOLDINGS_MAX: Final = 1000
"""Keys in one ``Holdings``; further ones go into the next message."""

Term: TypeAlias = tuple[int, int]
"""Controller epoch, and number of the last change of limits; a later term is greater."""


class DropLimits(NamedTuple):
    """Limits beyond which connections are closed at once; None for no limit."""

    total: int | None = None
    per_ip: int | None = None
    overrides: Mapping[str, int] = {}

    def of(self, key: str) -> int | None:
        return self.total if key == TOTAL else self.overrides.get(key, self.per_ip)


def home_of(key: str, processors: int) -> int:
    """Return the processor that grants the tokens of a key; it is the same in every process."""
    return 0 if key == TOTAL else zlib.crc32(key.encode()) % processors


class Holdings(NamedTuple):
    """Message to a home: numbers of open connections by key; ``more`` messages follow.

    The first message of a shard in a term, and on a new link.
    """

    term: Term
    used: tuple[tuple[str, int], ...]
    more: bool


class RequestToken(NamedTuple):
    """Message to a home: request for a token for the new connection with this number."""

    term: Term
    key: str
    number: int


class ReturnTokens(NamedTuple):
    """Message to a home: returned tokens."""

    term: Term
    key: str
    tokens: int


class Collected(NamedTuple):
    """Message to a home: the answer to ``Collect``, with the cached tokens."""

    term: Term
    key: str
    tokens: int


class Grant(NamedTuple):
    """Message to a shard: tokens; with ``reclaim`` they must be returned when they are free."""

    term: Term
    key: str
    tokens: int
    reclaim: bool


class TokenDenied(NamedTuple):
    """Message to a shard: there is no token for the new connection with this number."""

    term: Term
    key: str
    number: int


class Collect(NamedTuple):
    """Message to a shard: return unused tokens, now and whenever one becomes free."""

    term: Term
    key: str


class AllowCaching(NamedTuple):
    """Message to a shard: free tokens may be cached again."""

    term: Term
    key: str


ToHome: TypeAlias = Holdings | RequestToken | ReturnTokens | Collected
ToShard: TypeAlias = Grant | TokenDenied | Collect | AllowCaching
TokenMessage: TypeAlias = ToHome | ToShard


class Send(NamedTuple):
    """Action: send a message; the order matters."""

    peer: int
    message: TokenMessage


class Admit(NamedTuple):
    """Action: admit the new connection with this number."""

    number: int


class Reject(NamedTuple):
    """Action: reject the new connection with this number."""

    number: int
    refusal: ExceededCount


Action: TypeAlias = Send | Admit | Reject


# --------------------------------------------------------------------------------------------------
# Grants the tokens of some keys, and records how many each processor holds.
#
# Owns the number of tokens that each processor holds, in use or cached. It must never know
# connections, channels or clocks. Invariant: within a term, no more tokens are granted than the
# limit, unless more were in use when the term started; then none is granted until enough are
# returned. A home grants nothing until every processor has reported what it uses in this term; a
# dead processor uses nothing. The home shard's part of Redpanda's ``conn_quota``.


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


# --------------------------------------------------------------------------------------------------
# Connections of one processor, and the tokens that it holds for them.
#
# Owns which connections are open, which new ones wait for a token, and how many tokens are cached.
# It must never know sockets, channels or clocks. Invariant: an open connection has a token of each
# limit that applies to it: first that of the total, then that of its address. Without a limit there
# are no tokens or messages, but connections are counted, because a limit may be set later. The part
# of the other shards in Redpanda's ``conn_quota``.

CACHED_KEYS_MAX: Final = 10_000
"""Keys without connections whose tokens one processor caches; beyond that, the tokens of the least
recently used key are returned.
"""


class _Account:
    """State of one key: its connections, cached tokens, and waiting connections."""

    __slots__ = ("cached", "reclaim", "used", "waiting")

    def __init__(self) -> None:
        self.used = 0
        self.cached = 0
        self.reclaim = False
        self.waiting: list[int] = []  # Mostly empty, and then much smaller than a deque.


class _Waiter:
    """A connection that waits for admission; ``held``: how many of its two tokens it has."""

    __slots__ = ("held", "ip")

    def __init__(self, ip: str) -> None:
        self.ip = ip
        self.held = 0

    @property
    def next_key(self) -> str:
        """The key whose token is needed next."""
        return self.ip if self.held else TOTAL


class TokenShard:
    """The connections of one processor. Actions are added to ``actions``."""

    def __init__(self, processors: int, actions: deque[Action]) -> None:
        self._processors = processors
        self._actions = actions
        self._term: Term = (-1, -1)
        self._limits = DropLimits()
        self._accounts: dict[str, _Account] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        """Keys with tokens and without connections, least recently used first."""
        self._open: dict[int, str] = {}
        self._waiters: dict[int, _Waiter] = {}
        self._ready: deque[int] = deque()
        self._admits = False

    def start_admitting(self) -> None:
        """Admit connections from now on, beginning with those that wait."""
        self._admits = True
        self._ready.extend(self._waiters)
        self._proceed()

    def enter(self, term: Term, limits: DropLimits, peers: Iterable[int]) -> None:
        """Start a new term: unused tokens are void, and waiting connections request tokens again.

        ``peers`` get the numbers of open connections; peers that are away get them when they
        connect.
        """
        self._term = term
        self._limits = limits
        for waiter in self._waiters.values():
            if waiter.held:
                self._accounts[TOTAL].used -= 1
                waiter.held = 0
        for name, account in list(self._accounts.items()):
            self._void(account)
            account.waiting.clear()
            self._settle(name, account)
        self._report_holdings(peers)
        if self._admits:
            self._ready.extend(self._waiters)
            self._proceed()

    def peer_up(self, peer: int) -> None:
        """Send everything to a home that connected, possibly after a restart, and ask it again."""
        waiting: list[tuple[str, int]] = []
        for name, account in list(self._accounts.items()):
            if home_of(name, self._processors) == peer:
                self._void(account)
                waiting += [(name, number) for number in account.waiting]
                self._settle(name, account)
        self._report_holdings([peer])
        for name, number in waiting:
            self._send(name, RequestToken(self._term, name, number))

    def _void(self, account: _Account) -> None:
        account.cached = 0
        # More tokens than the limit may be in use, so free ones belong to the home.
        account.reclaim = True

    def _report_holdings(self, peers: Iterable[int]) -> None:
        used: dict[int, list[tuple[str, int]]] = {peer: [] for peer in peers}
        for name, account in self._accounts.items():
            home = home_of(name, self._processors)
            if account.used and home in used and self._limits.of(name) is not None:
                used[home].append((name, account.used))
        for peer, counts in used.items():
            for start in range(0, max(1, len(counts)), HOLDINGS_MAX):
                end = start + HOLDINGS_MAX
                holdings = Holdings(self._term, tuple(counts[start:end]), end < len(counts))
                self._actions.append(Send(peer, holdings))

    def admit(self, number: int, ip: str) -> None:
        """Add a new connection; an action admits or rejects it, now or later."""
        self._waiters[number] = _Waiter(ip)
        if self._admits:
            self._ready.append(number)
            self._proceed()

    def release(self, number: int) -> None:
        """Remove a closed connection, or one that waits no more."""
        ip = self._open.pop(number, None)
        if ip is not None:
            self._return_token(ip)
            self._return_token(TOTAL)
        else:
            self._remove_waiting(number)
        self._proceed()

    def receive(self, message: ToShard) -> None:
        """Handle a message of this term."""
        match message:
            case Grant(_, name, count, reclaim):
                self._granted(name, count, reclaim=reclaim)
            case TokenDenied(_, name, number):
                account = self._accounts.get(name)
                if account is not None and number in account.waiting:
                    self._reject(number)
            case Collect(_, name):
                self._collect(name)
            case AllowCaching(_, name):
                if name in self._accounts:
                    self._accounts[name].reclaim = False
        self._proceed()

    def _granted(self, name: str, count: int, *, reclaim: bool) -> None:
        account = self._account(name)
        account.reclaim = reclaim
        account.cached += count
        self._serve(account)
        if reclaim and account.cached:
            self._send(name, ReturnTokens(self._term, name, account.cached))
            account.cached = 0
        self._settle(name, account)

    def _collect(self, name: str) -> None:
        account = self._account(name)
        count, account.cached = account.cached, 0
        account.reclaim = True
        self._send(name, Collected(self._term, name, count))
        self._settle(name, account)

    def _proceed(self) -> None:
        # A loop instead of recursion: a thousand connections may wait for one token.
        while self._ready:
            number = self._ready.popleft()
            waiter = self._waiters.get(number)
            if waiter is not None:
                self._step(number, waiter)

    def _step(self, number: int, waiter: _Waiter) -> None:
        while waiter.held < 2:
            is_taken = self._take(waiter.next_key, number)
            if is_taken is None:
                return
            if not is_taken:
                self._reject(number)
                return
            waiter.held += 1
        del self._waiters[number]
        self._open[number] = waiter.ip
        self._actions.append(Admit(number))

    def _take(self, name: str, number: int) -> bool | None:
        """Take a token: True if there is one, None if the connection must wait for it."""
        limit = self._limits.of(name)
        if limit == 0:
            return False
        account = self._account(name)
        if limit is not None:
            if not account.cached:
                account.waiting.append(number)
                self._send(name, RequestToken(self._term, name, number))
                return None
            account.cached -= 1
        account.used += 1
        self._idle.pop(name, None)
        return True

    def _return_token(self, name: str) -> None:
        """Return the token of a connection that ended."""
        account = self._accounts[name]
        account.used -= 1
        if self._limits.of(name) is not None:
            if account.reclaim:
                self._send(name, ReturnTokens(self._term, name, 1))
            else:
                account.cached += 1
                self._serve(account)
        self._settle(name, account)

    def _serve(self, account: _Account) -> None:
        while account.cached and account.waiting:
            number = account.waiting.pop(0)
            account.cached -= 1
            account.used += 1
            self._waiters[number].held += 1
            self._ready.append(number)

    def _reject(self, number: int) -> None:
        next_key = self._waiters[number].next_key
        self._remove_waiting(number)
        reason = ExceededCount.DROPPED if next_key == TOTAL else ExceededCount.DROPPED_PER_IP
        self._actions.append(Reject(number, reason))

    def _remove_waiting(self, number: int) -> None:
        """Forget a waiting connection; its token is returned."""
        waiter = self._waiters.pop(number, None)
        if waiter is None:
            return
        name = waiter.next_key
        account = self._accounts.get(name)
        if account is not None and number in account.waiting:
            account.waiting.remove(number)
            self._settle(name, account)
        if waiter.held:
            self._return_token(TOTAL)

    def _account(self, name: str) -> _Account:
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = _Account()
        return account

    def _settle(self, name: str, account: _Account) -> None:
        """Keep the account only while it is not empty."""
        if account.used or account.waiting:
            self._idle.pop(name, None)
        elif account.cached:
            self._idle[name] = None
            if len(self._idle) > CACHED_KEYS_MAX:
                self._evict()
        else:
            self._idle.pop(name, None)
            del self._accounts[name]

    def _evict(self) -> None:
        name, _ = self._idle.popitem(last=False)
        account = self._accounts.pop(name)
        self._send(name, ReturnTokens(self._term, name, account.cached))

    def _send(self, name: str, message: TokenMessage) -> None:
        self._actions.append(Send(home_of(name, self._processors), message))

    @property
    def open(self) -> int:
        """Number of open connections."""
        return len(self._open)

    @property
    def waiting(self) -> int:
        """Number of connections that wait for admission."""
        return len(self._waiters)

    @property
    def idle_keys(self) -> int:
        """Number of keys without connections whose tokens are cached."""
        return len(self._idle)
