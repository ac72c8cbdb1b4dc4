"""The journal over HTTP."""

from __future__ import annotations

import httpx

from minibroker.lab.control.journal_shapes import (
    EntryConditions,
    EntryQuery,
    JournalAssertion,
    JournalChange,
)
from tests.lab.control.conftest import FakeBackend

_ON = JournalChange(enabled=True)


async def test_journal_is_switched_on_and_cleared(
    client: httpx.AsyncClient, backend: FakeBackend
) -> None:
    assert (await client.get("/v1/journal/state")).json()["enabled"] is False
    answer = await client.post("/v1/journal", json={"enabled": True})
    assert answer.json()["enabled"] is True
    assert (await client.delete("/v1/journal")).status_code == 204
    assert backend.journal.state.entries == 0


async def test_change_of_nothing_is_rejected(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/journal", json={})
    assert answer.status_code == 400
    assert "enabled" in answer.json()["error"]["message"]


async def test_query_while_the_journal_is_off_is_a_conflict(client: httpx.AsyncClient) -> None:
    for path in ("/v1/journal", "/v1/journal/stream"):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "JOURNAL_OFF")


async def test_entries_are_found(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    await backend.journal.change(_ON)
    answer = await client.get("/v1/journal", params={"kind": "fault", "after": "2"})
    (entry,) = answer.json()["entries"]
    assert (entry["sequence"], entry["kind"], entry["details"]) == (3, "fault", {"rule": "1"})
    assert backend.journal.queries == [EntryQuery(kind="fault", after="2")]


async def test_stream_sends_lines(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    await backend.journal.change(_ON)
    answer = await client.get("/v1/journal/stream")
    assert answer.headers["content-type"] == "application/jsonl"
    assert "content-length" not in answer.headers
    assert answer.content == b'\n{"sequence":3}\n'


async def test_stream_with_a_wrong_query_is_rejected(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/journal/stream", params={"kind": "x"})
    assert answer.status_code == 400


async def test_assertion_is_checked(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    answer = await client.post("/v1/journal/assert", json={"happened": {"api": "Fetch"}})
    assert answer.json()["holds"] is True
    assert backend.journal.assertions == [JournalAssertion(happened=EntryConditions(api="Fetch"))]


async def test_assertion_of_two_kinds_is_rejected(client: httpx.AsyncClient) -> None:
    bodies: list[dict[str, object]] = [{"happened": {}, "absent": {}}, {"wait_ms": 5}]
    for body in bodies:
        answer = await client.post("/v1/journal/assert", json=body)
        assert answer.status_code == 400
        assert "exactly one" in answer.json()["error"]["message"]


async def test_frame_is_dissected(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/journal/frames/3")
    assert answer.json() == {"text": "frame: 1 byte"}
    for sequence in ("4", "x", "9" * 5000):
        answer = await client.get(f"/v1/journal/frames/{sequence}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "NO_SUCH_FRAME")
