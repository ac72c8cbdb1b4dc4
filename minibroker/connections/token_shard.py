"""A processor's own connections, and the tokens that it has for them.

Owns the ground truth: which connections are open, which newcomers wait for a token, how many
tokens are kept for the next ones; it must never know a socket, a channel or a clock. Invariant:
a connection has a token of each limit that holds for it: the total's first, then its address's.
Where there is no limit there is no token and no message, but the connection is counted all the
same, for a limit may come. The other shards' half of Redpanda's ``conn_quota``.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final

from minibroker.connections.counts import ExceededCount
from minibroker.connections.token_messages import (
    HOLDINGS_MAX,
    TOTAL,
    Action,
    Admit,
    Ask,
    Collect,
    Collected,
    DropLimits,
    Give,
    Grant,
    Holdings,
    Reject,
    Relax,
    Send,
    Term,
    TokenDenied,
    TokenMessage,
    ToShard,
    home_of,
)

CACHED_KEYS_MAX: Final = 10_000
"""Keys without a connection whose tokens one processor keeps; past that the one that was used
least recently gives them back."""


class _Account:
    """One key: connections that count for it, tokens kept for further ones, who waits for one."""

    __slots__ = ("cached", "reclaim", "used", "waiting")

    def __init__(self) -> None:
        self.used = 0
        self.cached = 0
        self.reclaim = False
        self.waiting: list[int] = []  # Mostly empty, and then much smaller than a deque.


class _Newcomer:
    """A connection that is not let in yet; ``held`` of its two keys' tokens it has."""

    __slots__ = ("held", "ip")

    def __init__(self, ip: str) -> None:
        self.ip = ip
        self.held = 0

    @property
    def wanted(self) -> str:
        """The key whose token comes next."""
        return self.ip if self.held else TOTAL


class TokenShard:
    """The connections of one processor. What there is to do is added to ``actions``."""

    def __init__(self, processors: int, actions: deque[Action]) -> None:
        self._processors = processors
        self._actions = actions
        self._term: Term = (-1, -1)
        self._limits = DropLimits()
        self._accounts: dict[str, _Account] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        """Keys that have tokens and no connection, the least recently used first."""
        self._open: dict[int, str] = {}
        self._newcomers: dict[int, _Newcomer] = {}
        self._ready: deque[int] = deque()
        self._is_open = False

    def open_doors(self) -> None:
        """From now on newcomers may be let in; those that came before are seen to now."""
        self._is_open = True
        self._ready.extend(self._newcomers)
        self._proceed()

    def enter(self, term: Term, limits: DropLimits, peers: Iterable[int]) -> None:
        """A new term begins: every token that is not in use is void, and newcomers begin anew.

        ``peers`` are told what is in use; those that are away will be when they are back.
        """
        self._term = term
        self._limits = limits
        for newcomer in self._newcomers.values():
            if newcomer.held:
                self._accounts[TOTAL].used -= 1
                newcomer.held = 0
        for name, account in list(self._accounts.items()):
            self._void(account)
            account.waiting.clear()
            self._settle(name, account)
        self._tell(peers)
        if self._is_open:
            self._ready.extend(self._newcomers)
            self._proceed()

    def peer_up(self, peer: int) -> None:
        """A home is there, perhaps in a new life: it is told everything and asked anew."""
        waiting: list[tuple[str, int]] = []
        for name, account in list(self._accounts.items()):
            if home_of(name, self._processors) == peer:
                self._void(account)
                waiting += [(name, number) for number in account.waiting]
                self._settle(name, account)
        self._tell([peer])
        for name, number in waiting:
            self._send(name, Ask(self._term, name, number))

    def _void(self, account: _Account) -> None:
        account.cached = 0
        # More may be in use than the limit says, so what becomes free is the home's to give.
        account.reclaim = True

    def _tell(self, peers: Iterable[int]) -> None:
        used: dict[int, list[tuple[str, int]]] = {peer: [] for peer in peers}
        for name, account in self._accounts.items():
            home = home_of(name, self._processors)
            if account.used and home in used and self._limits.of(name) is not None:
                used[home].append((name, account.used))
        for peer, found in used.items():
            for start in range(0, max(1, len(found)), HOLDINGS_MAX):
                end = start + HOLDINGS_MAX
                told = Holdings(self._term, tuple(found[start:end]), end < len(found))
                self._actions.append(Send(peer, told))

    def admit(self, number: int, ip: str) -> None:
        """A newcomer: it is let in or turned away by an action, now or later."""
        self._newcomers[number] = _Newcomer(ip)
        if self._is_open:
            self._ready.append(number)
            self._proceed()

    def release(self, number: int) -> None:
        """A connection is closed, or a newcomer does not want to come in any more."""
        ip = self._open.pop(number, None)
        if ip is not None:
            self._put(ip)
            self._put(TOTAL)
        else:
            self._drop(number)
        self._proceed()

    def receive(self, message: ToShard) -> None:
        """Takes a message of this term."""
        match message:
            case Grant(_, name, count, reclaim):
                self._granted(name, count, reclaim=reclaim)
            case TokenDenied(_, name, number):
                account = self._accounts.get(name)
                if account is not None and number in account.waiting:
                    self._refuse(number)
            case Collect(_, name):
                self._collect(name)
            case Relax(_, name):
                if name in self._accounts:
                    self._accounts[name].reclaim = False
        self._proceed()

    def _granted(self, name: str, count: int, *, reclaim: bool) -> None:
        account = self._account(name)
        account.reclaim = reclaim
        account.cached += count
        self._serve(account)
        if reclaim and account.cached:
            self._send(name, Give(self._term, name, account.cached))
            account.cached = 0
        self._settle(name, account)

    def _collect(self, name: str) -> None:
        account = self._account(name)
        count, account.cached = account.cached, 0
        account.reclaim = True
        self._send(name, Collected(self._term, name, count))
        self._settle(name, account)

    def _proceed(self) -> None:
        # A loop and not calls from one to the next: a thousand may have waited for one token.
        while self._ready:
            number = self._ready.popleft()
            newcomer = self._newcomers.get(number)
            if newcomer is not None:
                self._step(number, newcomer)

    def _step(self, number: int, newcomer: _Newcomer) -> None:
        while newcomer.held < 2:
            taken = self._take(newcomer.wanted, number)
            if taken is None:
                return
            if not taken:
                self._refuse(number)
                return
            newcomer.held += 1
        del self._newcomers[number]
        self._open[number] = newcomer.ip
        self._actions.append(Admit(number))

    def _take(self, name: str, number: int) -> bool | None:
        """Whether there is a token; None if it must be waited for."""
        limit = self._limits.of(name)
        if limit == 0:
            return False
        account = self._account(name)
        if limit is not None:
            if not account.cached:
                account.waiting.append(number)
                self._send(name, Ask(self._term, name, number))
                return None
            account.cached -= 1
        account.used += 1
        self._idle.pop(name, None)
        return True

    def _put(self, name: str) -> None:
        """A connection that counted for the key does so no longer."""
        account = self._accounts[name]
        account.used -= 1
        if self._limits.of(name) is not None:
            if account.reclaim:
                self._send(name, Give(self._term, name, 1))
            else:
                account.cached += 1
                self._serve(account)
        self._settle(name, account)

    def _serve(self, account: _Account) -> None:
        while account.cached and account.waiting:
            number = account.waiting.pop(0)
            account.cached -= 1
            account.used += 1
            self._newcomers[number].held += 1
            self._ready.append(number)

    def _refuse(self, number: int) -> None:
        wanted = self._newcomers[number].wanted
        self._drop(number)
        refusal = ExceededCount.DROPPED if wanted == TOTAL else ExceededCount.DROPPED_PER_IP
        self._actions.append(Reject(number, refusal))

    def _drop(self, number: int) -> None:
        """Forgets a newcomer; the token it has is put back."""
        newcomer = self._newcomers.pop(number, None)
        if newcomer is None:
            return
        name = newcomer.wanted
        account = self._accounts.get(name)
        if account is not None and number in account.waiting:
            account.waiting.remove(number)
            self._settle(name, account)
        if newcomer.held:
            self._put(TOTAL)

    def _account(self, name: str) -> _Account:
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = _Account()
        return account

    def _settle(self, name: str, account: _Account) -> None:
        """Keeps the account only as long as there is anything in it."""
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
        self._send(name, Give(self._term, name, account.cached))

    def _send(self, name: str, message: TokenMessage) -> None:
        self._actions.append(Send(home_of(name, self._processors), message))

    @property
    def open(self) -> int:
        """Connections that were let in and are not closed."""
        return len(self._open)

    @property
    def waiting(self) -> int:
        """Newcomers that are neither let in nor turned away yet."""
        return len(self._newcomers)

    @property
    def idle_keys(self) -> int:
        """Keys without a connection whose tokens are kept."""
        return len(self._idle)
