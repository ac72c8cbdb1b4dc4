"""The home of a key: grants, denials and collections of tokens."""

from __future__ import annotations

from collections import deque

from minibroker.broker.connections.token_home import TokenHome
from minibroker.broker.connections.token_messages import (
    TOTAL,
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
    TokenDenied,
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
