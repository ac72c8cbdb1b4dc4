"""Homes grant no more tokens than the limit; shards admit only with tokens."""

from __future__ import annotations

from collections import deque

import pytest

from minibroker.broker.connections import tokens
from minibroker.broker.connections.limits import ExceededCount
from minibroker.broker.connections.tokens import (
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
    TokenDenied,
    TokenHome,
    TokenShard,
)

TERM = (1, 0)


class Books:
    """A token home, and the messages that it sent since the last call of `sent`."""

    def __init__(self, processors: int, limit: int, *, reported: bool = True) -> None:
        self.actions: deque[Action] = deque()
        self.home = TokenHome(processors, self.actions)
        self.home.enter(TERM, DropLimits(total=limit))
        for peer in range(processors) if reported else ():
            self.home.receive(peer, Holdings(TERM, (), more=False))

    def sent(self) -> list[Action]:
        found = list(self.actions)
        self.actions.clear()
        return found

    def ask(self, peer: int, number: int = 1) -> list[Action]:
        self.home.receive(peer, RequestToken(TERM, TOTAL, number))
        return self.sent()


def granted(peer: int, tokens: int = 1, *, reclaim: bool = False) -> Action:
    return Send(peer, Grant(TERM, TOTAL, tokens, reclaim))


def denied(peer: int, number: int = 1) -> Action:
    return Send(peer, TokenDenied(TERM, TOTAL, number))


def test_home_grants_nothing_before_all_reports() -> None:
    books = Books(2, 1, reported=False)
    assert books.ask(1) == []
    books.home.receive(1, Holdings(TERM, (), more=False))
    assert books.sent() == []
    books.home.receive(0, Holdings(TERM, (), more=True))
    assert books.sent() == []
    books.home.receive(0, Holdings(TERM, (), more=False))
    assert books.sent() == [granted(1)]


def test_tokens_in_use_are_not_granted_again() -> None:
    books = Books(2, 2, reported=False)
    books.home.receive(0, Holdings(TERM, ((TOTAL, 1),), more=True))
    books.home.receive(0, Holdings(TERM, (), more=False))
    books.home.receive(1, Holdings(TERM, ((TOTAL, 2),), more=False))
    assert books.ask(1) == [denied(1)]
    books.home.receive(1, ReturnTokens(TERM, TOTAL, 1))
    assert books.ask(0) == [denied(0)]
    books.home.receive(0, ReturnTokens(TERM, TOTAL, 1))
    assert books.ask(0, 7) == [granted(0, reclaim=True)]


def test_first_request_of_key_grants_a_share_to_all() -> None:
    books = Books(3, 60)
    assert books.ask(2) == [granted(2, 10), granted(0, 10), granted(1, 10)]
    assert books.ask(2) == [granted(2)]


def test_dead_processors_get_no_tokens() -> None:
    books = Books(3, 60)
    books.home.peer_down(1)
    assert books.ask(2) == [granted(2, 10), granted(0, 10)]


def test_few_tokens_are_granted_one_at_a_time() -> None:
    assert Books(3, 3).ask(1) == [granted(1)]
    assert Books(3, 4).ask(1) == [granted(1), granted(0), granted(2)]


def test_unused_tokens_are_collected_before_a_denial() -> None:
    books = Books(2, 3)
    assert books.ask(0) == [granted(0), granted(1)]
    assert books.ask(0) == [granted(0)]
    assert books.ask(0, 3) == [Send(0, Collect(TERM, TOTAL)), Send(1, Collect(TERM, TOTAL))]
    assert books.ask(0, 4) == []
    books.home.receive(0, Collected(TERM, TOTAL, 0))
    assert books.sent() == []
    books.home.receive(1, Collected(TERM, TOTAL, 1))
    # Processor 0 is asked again: it returns this token if its connection got another one.
    assert books.sent() == [granted(0, reclaim=True), Send(0, Collect(TERM, TOTAL))]
    books.home.receive(0, Collected(TERM, TOTAL, 0))
    assert books.sent() == [denied(0, 4)]
    assert books.ask(1, 5) == [denied(1, 5)]  # No token was granted since, so none is collected.


def test_dead_processor_does_not_block_a_collection() -> None:
    books = Books(2, 3)
    for _ in range(2):
        books.ask(0)
    books.ask(0, 3)
    books.home.receive(0, Collected(TERM, TOTAL, 0))
    books.home.peer_down(1)
    assert books.sent() == [granted(0, reclaim=True)]


def test_reclaim_ends_when_half_of_the_tokens_are_free() -> None:
    books = Books(2, 4)
    for _ in range(3):
        books.ask(0)
    books.ask(0, 4)
    books.home.receive(0, Collected(TERM, TOTAL, 0))
    books.home.receive(1, Collected(TERM, TOTAL, 1))
    assert books.sent() == [granted(0, reclaim=True)]
    books.home.receive(0, ReturnTokens(TERM, TOTAL, 2))
    assert books.sent() == []
    books.home.receive(0, ReturnTokens(TERM, TOTAL, 1))
    assert books.sent() == [Send(0, AllowCaching(TERM, TOTAL))]


def test_unused_key_is_forgotten() -> None:
    books = Books(2, 2)
    books.ask(1)
    assert books.home.keys == 1
    books.home.receive(1, ReturnTokens(TERM, TOTAL, 1))
    assert books.home.keys == 0
    books.ask(1)
    books.home.peer_down(1)
    assert books.home.keys == 0


TERM, LATER = (1, 0), (1, 1)
IP = "10.0.0.1"


class ShardBooks:
    """One of two shards, and its actions since the last look. The home of ``IP`` is 1."""

    def __init__(self, limits: DropLimits) -> None:
        self.actions: deque[Action] = deque()
        self.shard = TokenShard(2, self.actions)
        self.shard.enter(TERM, limits, [])
        self.shard.start_admitting()

    def done(self) -> list[Action]:
        found = list(self.actions)
        self.actions.clear()
        return found

    def grant(self, key: str, tokens: int = 1, *, reclaim: bool = False) -> list[Action]:
        self.shard.receive(Grant(TERM, key, tokens, reclaim))
        return self.done()


def test_token_of_total_is_taken_before_token_of_address() -> None:
    books = ShardBooks(DropLimits(5, 5))
    books.shard.admit(1, IP)
    assert books.done() == [Send(0, RequestToken(TERM, TOTAL, 1))]
    assert books.grant(TOTAL) == [Send(1, RequestToken(TERM, IP, 1))]
    assert books.grant(IP) == [Admit(1)]
    assert (books.shard.open, books.shard.waiting) == (1, 0)


def test_released_token_is_reused_without_request() -> None:
    books = ShardBooks(DropLimits(5))
    books.shard.admit(1, IP)
    books.grant(TOTAL)
    books.shard.release(1)
    books.shard.admit(2, IP)
    assert books.done() == [Admit(2)]


def test_token_in_reclaim_is_returned_to_its_home() -> None:
    books = ShardBooks(DropLimits(5))
    for number in (1, 2):
        books.shard.admit(number, IP)
    books.grant(TOTAL, 4)
    books.shard.receive(Collect(TERM, TOTAL))
    assert books.done() == [Send(0, Collected(TERM, TOTAL, 2))]
    books.shard.release(1)
    assert books.done() == [Send(0, ReturnTokens(TERM, TOTAL, 1))]
    books.shard.receive(AllowCaching(TERM, TOTAL))
    books.shard.release(2)
    assert books.done() == []


def test_denied_address_passes_its_total_token_to_a_waiting_connection() -> None:
    books = ShardBooks(DropLimits(5, 1))
    for number in (1, 2):
        books.shard.admit(number, IP)
    books.grant(TOTAL)
    books.shard.receive(TokenDenied(TERM, IP, 1))
    refused = Reject(1, ExceededCount.DROPPED_PER_IP)
    assert books.done() == [refused, Send(1, RequestToken(TERM, IP, 2))]


def test_grant_for_closed_connection_serves_the_next() -> None:
    books = ShardBooks(DropLimits(5))
    for number in (1, 2):
        books.shard.admit(number, IP)
    books.shard.release(1)
    books.done()
    assert books.grant(TOTAL) == [Admit(2)]
    books.shard.receive(TokenDenied(TERM, TOTAL, 1))
    assert books.done() == []
    assert books.grant(TOTAL, reclaim=True) == [Send(0, ReturnTokens(TERM, TOTAL, 1))]


def test_thousand_waiting_connections_are_denied_without_recursion() -> None:
    books = ShardBooks(DropLimits(5, 0))
    for number in range(2000):
        books.shard.admit(number, IP)
    books.done()
    found = books.grant(TOTAL)
    assert found == [Reject(number, ExceededCount.DROPPED_PER_IP) for number in range(2000)]


def test_connections_wait_until_the_shard_is_open() -> None:
    actions: deque[Action] = deque()
    shard = TokenShard(2, actions)
    shard.enter(TERM, DropLimits(), [])
    shard.admit(1, IP)
    assert not actions
    shard.start_admitting()
    assert list(actions) == [Admit(1)]


def test_new_term_starts_with_tokens_in_use_and_new_requests() -> None:
    books = ShardBooks(DropLimits(per_ip=3))
    books.shard.admit(1, IP)
    books.grant(IP, 2)
    for number in (2, 3):
        books.shard.admit(number, IP)
    books.done()
    books.shard.enter(LATER, DropLimits(per_ip=2), [0, 1])
    assert books.done() == [
        Send(0, Holdings(LATER, (), more=False)),
        Send(1, Holdings(LATER, ((IP, 2),), more=False)),
        Send(1, RequestToken(LATER, IP, 3)),
    ]


def test_many_holdings_are_sent_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "HOLDINGS_MAX", 2)
    books = ShardBooks(DropLimits())
    ips = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.8", "10.0.0.4"]
    for number, ip in enumerate(ips):
        books.shard.admit(number, ip)
    books.shard.enter(LATER, DropLimits(per_ip=9), [1])
    messages = [action.message for action in books.done() if isinstance(action, Send)]
    found = [entry for each in messages if isinstance(each, Holdings) for entry in each.used]
    assert found == [(ip, 1) for ip in ips if ip != "10.0.0.4"]
    assert [each.more for each in messages if isinstance(each, Holdings)] == [True, False]


def test_tokens_of_least_recently_used_address_are_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokens, "CACHED_KEYS_MAX", 2)
    books = ShardBooks(DropLimits(per_ip=100))
    first, second, third = "10.0.0.1", "10.0.0.2", "10.0.0.3"
    assert books.grant(first, 7) == books.grant(second, 8) == []
    books.shard.admit(1, first)  # Used by now, and later than the second when it is closed.
    books.shard.release(1)
    books.done()
    assert books.grant(third, 9) == [Send(1, ReturnTokens(TERM, second, 8))]
    assert books.shard.idle_keys == 2


def test_address_with_open_connection_is_not_evicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokens, "CACHED_KEYS_MAX", 1)
    books = ShardBooks(DropLimits(per_ip=100))
    books.grant("10.0.0.1", 7)
    books.shard.admit(1, "10.0.0.1")
    assert books.done() == [Admit(1)]
    assert books.grant("10.0.0.2", 8) == []
