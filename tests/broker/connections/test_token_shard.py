"""Connections of one processor: cached tokens, returned tokens, messages."""

from __future__ import annotations

from collections import deque

import pytest

from minibroker.broker.connections import token_shard
from minibroker.broker.connections.counts import ExceededCount
from minibroker.broker.connections.token_messages import (
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
)
from minibroker.broker.connections.token_shard import TokenShard

TERM, LATER = (1, 0), (1, 1)
IP = "10.0.0.1"


class Books:
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
    books = Books(DropLimits(5, 5))
    books.shard.admit(1, IP)
    assert books.done() == [Send(0, RequestToken(TERM, TOTAL, 1))]
    assert books.grant(TOTAL) == [Send(1, RequestToken(TERM, IP, 1))]
    assert books.grant(IP) == [Admit(1)]
    assert (books.shard.open, books.shard.waiting) == (1, 0)


def test_released_token_is_reused_without_request() -> None:
    books = Books(DropLimits(5))
    books.shard.admit(1, IP)
    books.grant(TOTAL)
    books.shard.release(1)
    books.shard.admit(2, IP)
    assert books.done() == [Admit(2)]


def test_token_in_reclaim_is_returned_to_its_home() -> None:
    books = Books(DropLimits(5))
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
    books = Books(DropLimits(5, 1))
    for number in (1, 2):
        books.shard.admit(number, IP)
    books.grant(TOTAL)
    books.shard.receive(TokenDenied(TERM, IP, 1))
    refused = Reject(1, ExceededCount.DROPPED_PER_IP)
    assert books.done() == [refused, Send(1, RequestToken(TERM, IP, 2))]


def test_grant_for_closed_connection_serves_the_next() -> None:
    books = Books(DropLimits(5))
    for number in (1, 2):
        books.shard.admit(number, IP)
    books.shard.release(1)
    books.done()
    assert books.grant(TOTAL) == [Admit(2)]
    books.shard.receive(TokenDenied(TERM, TOTAL, 1))
    assert books.done() == []
    assert books.grant(TOTAL, reclaim=True) == [Send(0, ReturnTokens(TERM, TOTAL, 1))]


def test_thousand_waiting_connections_are_denied_without_recursion() -> None:
    books = Books(DropLimits(5, 0))
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
    books = Books(DropLimits(per_ip=3))
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
    monkeypatch.setattr(token_shard, "HOLDINGS_MAX", 2)
    books = Books(DropLimits())
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
    monkeypatch.setattr(token_shard, "CACHED_KEYS_MAX", 2)
    books = Books(DropLimits(per_ip=100))
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
    monkeypatch.setattr(token_shard, "CACHED_KEYS_MAX", 1)
    books = Books(DropLimits(per_ip=100))
    books.grant("10.0.0.1", 7)
    books.shard.admit(1, "10.0.0.1")
    assert books.done() == [Admit(1)]
    assert books.grant("10.0.0.2", 8) == []
