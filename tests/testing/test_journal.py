"""The journal in a test: entries of this test only, waiting, and assertions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import trio

from minibroker.testing import ControlError, DidNotHappen, MiniBroker
from minibroker.testing.broker import AsyncJournal
from minibroker.testing.journal import RecordedJournal
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from tests.broker.network.raw_client import RawClient


@pytest.fixture(scope="module")
def minibroker() -> Iterator[MiniBroker]:
    """A broker whose clock these tests may change, also if they run in parallel to others."""
    with MiniBroker() as broker:
        yield broker


@pytest.fixture
def client(minibroker: MiniBroker) -> Iterator[RawClient]:
    with RawClient(minibroker.bootstrap_servers, "traced") as connected:
        yield connected


def beat(client: RawClient, group: str = "g") -> int:
    return int(client.ask(HeartbeatRequest(group_id=group, member_id="m"), 4).error_code)


def test_entries_of_former_tests_are_not_seen(
    minibroker: MiniBroker, minibroker_journal: RecordedJournal, client: RawClient
) -> None:
    beat(client)
    with minibroker.journal as journal:
        assert journal.entries(api="Heartbeat") == []
        beat(client)
        assert len(journal.entries(api="Heartbeat", client_id="traced")) == 2
    beat(client)
    assert len(journal.entries(api="Heartbeat", client_id="traced")) == 2


def test_entries_are_decoded_and_filtered_by_details(
    minibroker: MiniBroker, minibroker_journal: RecordedJournal, client: RawClient
) -> None:
    beat(client, "mine")
    request, response = minibroker_journal.entries(api="Heartbeat", decode=True)
    assert request["body"]["group_id"] == "mine"
    assert response["body"]["error_code"] == 25
    assert minibroker_journal.entries(kind="response", error="UNKNOWN_MEMBER_ID")
    minibroker.advance(5)
    assert minibroker_journal.entries(kind="clock", details={"frozen": False})
    assert not minibroker_journal.entries(kind="clock", details={"frozen": True})


def test_all_pages_are_read(
    minibroker_journal: RecordedJournal, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minibroker.testing.journal.PAGE_ENTRIES", 3)
    for _ in range(4):
        beat(client)
    assert len(minibroker_journal.entries(api="Heartbeat")) == 8


def test_wait_for_an_entry_returns_it_when_it_is_there(
    minibroker_journal: RecordedJournal, client: RawClient, minibroker: MiniBroker
) -> None:
    found: list[dict[str, object]] = []
    first = threading.Thread(
        target=lambda: found.append(
            minibroker_journal.wait_for(kind="clock", details={"frozen": True})
        )
    )
    first.start()
    minibroker.advance(1)
    minibroker.freeze()
    minibroker.freeze(False)
    first.join()
    (entry,) = found
    assert entry["details"]["frozen"] is True  # type: ignore[index]
    later = minibroker_journal.wait_for(after=entry, kind="clock")
    assert later["details"]["frozen"] is False


def test_wait_for_an_entry_that_does_not_come_ends(minibroker_journal: RecordedJournal) -> None:
    with pytest.raises(DidNotHappen, match=r"no entry with .*'Fetch'"):
        minibroker_journal.wait_for(api="Fetch", timeout_s=0)


def test_assertions_hold_or_explain(
    minibroker: MiniBroker, minibroker_journal: RecordedJournal, client: RawClient
) -> None:
    beat(client)
    entries = minibroker_journal.assert_happened(2, api="Heartbeat")
    assert [entry["kind"] for entry in entries] == ["request", "response"]
    minibroker_journal.assert_in_order({"kind": "request"}, {"kind": "response"})
    minibroker_journal.assert_absent(api="Fetch")
    minibroker_journal.assert_absent(api="Heartbeat", before_ms=1.0)
    with pytest.raises(DidNotHappen, match="2 entries match, at least 3 are wanted"):
        minibroker_journal.assert_happened(3, api="Heartbeat")
    with pytest.raises(DidNotHappen, match="step 2 of 2"):
        minibroker_journal.assert_in_order({"kind": "response"}, {"kind": "request"})
    with pytest.raises(DidNotHappen, match=r"entry .* matches"):
        minibroker_journal.assert_absent(kind="request")
    with pytest.raises(ControlError, match="did you mean 'Heartbeat'"):
        minibroker_journal.assert_happened(api="Hartbeat")


def test_journal_that_others_use_stays_on(minibroker: MiniBroker) -> None:
    RecordedJournal(minibroker.control, guarded=True).start().stop()
    assert minibroker.control.get("v1", "journal", "state")["enabled"]
    minibroker.journal.stop()
    assert not minibroker.control.get("v1", "journal", "state")["enabled"]


async def use(journal: AsyncJournal, broker: MiniBroker) -> None:
    async with journal:
        broker.advance(1)
        entry = await journal.wait_for(kind="clock")
        assert [each["sequence"] for each in await journal.entries()] == [entry["sequence"]]
        await journal.assert_happened(kind="clock")
        await journal.assert_in_order({"kind": "clock"})
        await journal.assert_absent(kind="fault")


def test_journal_is_used_from_asyncio_and_trio(minibroker: MiniBroker) -> None:
    asyncio.run(use(AsyncJournal(minibroker.journal), minibroker))
    trio.run(use, AsyncJournal(minibroker.journal), minibroker)
