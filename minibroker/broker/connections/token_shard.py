"""Connections of one processor, and the tokens that it holds for them.

Owns which connections are open, which new ones wait for a token, and how many tokens are cached. It
must never know sockets, channels or clocks. Invariant: an open connection has a token of each limit
that applies to it: first that of the total, then that of its address. Without a limit there are no
tokens or messages, but connections are counted, because a limit may be set later. The part of the
other shards in Redpanda's ``conn_quota``.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final

from minibroker.broker.connections.counts import ExceededCount
from minibroker.broker.connections.token_messages import (
    HOLDINGS_MAX,
    TOTAL,
    Action,
    Admit,
    AllowCaching,
    Collect,
    Collected,
    DropLimits,
    Grant,
    Holdings,
    Reject,
    RequestToken,
    ReturnTokens,
    Send,
    Term,
    TokenDenied,
    TokenMessage,
    ToShard,
    home_of,
)

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
