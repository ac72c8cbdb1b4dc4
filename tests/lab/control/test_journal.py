"""Queries become filters, entries become JSON, and what cannot match is an error."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import replace
from typing import get_args

import httpx
import pytest

from minibroker.lab.control.journal import (
    EntryConditions,
    EntryKindName,
    EntryQuery,
    EntryView,
    JournalAssertion,
    JournalChange,
    SendLine,
    change_journal,
    dissected,
    read_conditions,
    read_query,
    view_of,
    views,
)
from minibroker.lab.control.journal_collector import JournalCollector
from minibroker.lab.errors import json_bytes
from minibroker.lab.journal.entries import EntryKind, JournalEntry
from minibroker.lab.journal.filters import EntryFilter
from minibroker.lab.schema import InvalidJson, component, parse
from minibroker_protocol.compiler import encode
from minibroker_protocol.messages.describe_client_quotas import (
    DescribeClientQuotasResponse,
    EntryData,
    ValueData,
)
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.wire import encode_response_header
from tests.lab.control.conftest import FakeBroker
from tests.lab.journal.entries_of_tests import entry_of, request_entry, response_entry
from tests.lab.journal.records_of_tests import request


def test_empty_query_matches_all() -> None:
    request = read_query(EntryQuery())
    assert request.wanted == EntryFilter()
    assert (request.limit, request.wait_ms, request.frames, request.decode) == (
        1000,
        0,
        False,
        False,
    )


def test_query_becomes_a_filter() -> None:
    query = EntryQuery(
        kind="request, response",
        api="Fetch",
        client_id="a*",
        connection="5",
        role="processor-0",
        topic="t",
        group="g",
        error="not_coordinator",
        after="7",
        limit="3",
        wait_ms="10",
        frames="true",
        decode="true",
    )
    request = read_query(query)
    assert request.wanted == EntryFilter(
        kinds=frozenset({EntryKind.REQUEST, EntryKind.RESPONSE}),
        api="Fetch",
        client_id="a*",
        connection="5",
        role="processor-0",
        topic="t",
        group="g",
        error="not_coordinator",
        after=7,
    )
    assert request[1:] == (3, 10, True, True)


@pytest.mark.parametrize(
    ("query", "path", "text"),
    [
        (EntryQuery(kind="reqest"), "kind", "did you mean 'request'"),
        (EntryQuery(api="Produc"), "api", "did you mean 'Produce'"),
        (EntryQuery(error="NOT_COORDINATO"), "error", "did you mean 'NOT_COORDINATOR'"),
        (EntryQuery(error="12345678"), "error", "is not known"),
        (EntryQuery(after="-1"), "after", "must be a number"),
        (EntryQuery(limit="10001"), "limit", "must be a number from 0 to 10000"),
        (EntryQuery(wait_ms="x"), "wait_ms", "must be a number"),
        (EntryQuery(wait_ms="9" * 5000), "wait_ms", "must be a number"),
        (EntryQuery(frames="yes"), "frames", "must be true or false"),
    ],
)
def test_query_that_matches_nothing_is_rejected(query: EntryQuery, path: str, text: str) -> None:
    with pytest.raises(InvalidJson) as raised:
        read_query(query)
    (fault,) = raised.value.faults
    assert fault.path == path
    assert text in fault.message


def test_conditions_become_a_filter() -> None:
    conditions = EntryConditions(kind="state", details={"to": "Stable"}, error="16")
    assert read_conditions("absent", conditions, 4) == EntryFilter(
        kinds=frozenset({EntryKind.STATE}), details={"to": "Stable"}, error="16", after=4
    )


def test_unknown_api_in_conditions_is_named_with_its_place() -> None:
    with pytest.raises(InvalidJson) as raised:
        read_conditions("in_order.1", EntryConditions(api="Nothing"), 0)
    assert raised.value.faults[0].path == "in_order.1.api"


def test_view_has_frame_and_body_only_if_wanted() -> None:
    entry = request_entry("orders")
    (plain,) = views([entry])
    assert (plain.frame, plain.body, plain.api) == (None, None, "Heartbeat")
    full = view_of(entry, frames=True, decode=True)
    assert base64.b64decode(full.frame or "") == entry.frame
    assert full.body is not None
    assert full.body["group_id"] == "orders"
    assert view_of(entry_of("clock"), frames=True, decode=True).frame is None


def test_decoded_body_is_json_whatever_numbers_it_has() -> None:
    entries = [EntryData(entity=[], values=[ValueData(key="k", value=float("inf"))])]
    frame = encode_response_header(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, 1)
    frame += encode(DescribeClientQuotasResponse(entries=entries), 1)
    entry = replace(
        entry_of("response", frame), api="DescribeClientQuotas", version=1, connection="1"
    )
    shown = json.loads(json_bytes(view_of(entry, decode=True)))
    assert shown["body"]["entries"][0]["values"][0]["value"] == "inf"


def test_dissected_frame_names_the_fields() -> None:
    assert "group_id: 'orders'" in (dissected(request_entry("orders")) or "")
    assert "error_code: 27" in (dissected(response_entry(27)) or "")
    assert dissected(entry_of("clock")) is None


def test_kinds_are_those_of_the_journal() -> None:
    assert list(get_args(EntryKindName)) == [kind.value for kind in EntryKind]


def test_view_has_every_field_of_an_entry() -> None:
    assert EntryView._fields == (*JournalEntry.__slots__, "body")


def test_every_condition_is_optional_and_described() -> None:
    for record in (EntryQuery, EntryConditions, JournalAssertion):
        assert component(record)["required"] == []
    for field in component(EntryQuery)["properties"].values():
        assert field["description"]


def test_assertion_with_steps_is_parsed() -> None:
    steps = [{"kind": "request"}, {"details": {"to": "Stable"}}]
    assertion = parse(JournalAssertion, {"in_order": steps})
    assert assertion.in_order == (
        EntryConditions(kind="request"),
        EntryConditions(details={"to": "Stable"}),
    )


_ON = JournalChange(enabled=True)


async def test_journal_is_switched_on_and_cleared(
    client: httpx.AsyncClient, fake_broker: FakeBroker
) -> None:
    assert (await client.get("/v1/journal/state")).json()["enabled"] is False
    answer = await client.post("/v1/journal", json={"enabled": True})
    assert answer.json()["enabled"] is True
    fake_broker.record_faults(2)
    assert (await client.get("/v1/journal/state")).json()["entries"] == 2
    assert (await client.delete("/v1/journal")).status_code == 204
    assert (await client.get("/v1/journal/state")).json()["entries"] == 0


async def test_change_of_nothing_is_rejected(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/journal", json={})
    assert answer.status_code == 400
    assert "enabled" in answer.json()["error"]["message"]


async def test_query_while_the_journal_is_off_is_a_conflict(client: httpx.AsyncClient) -> None:
    for path in ("/v1/journal", "/v1/journal/stream"):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "JOURNAL_OFF")


async def test_entries_are_found(client: httpx.AsyncClient, fake_broker: FakeBroker) -> None:
    await change_journal(fake_broker, _ON)
    fake_broker.record_faults(3)
    answer = await client.get("/v1/journal", params={"kind": "fault", "after": "2"})
    (entry,) = answer.json()["entries"]
    assert (entry["sequence"], entry["kind"], entry["details"]) == (3, "fault", {"rule": "1"})
    answer = await client.get("/v1/journal", params={"kind": "state"})
    assert answer.json()["entries"] == []


async def test_stream_sends_lines(
    client: httpx.AsyncClient, fake_broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def send_entries(_: JournalCollector, query: EntryQuery, send: SendLine) -> None:
        assert query == EntryQuery(api="Fetch")
        for line in (b"\n", b'{"sequence":3}\n'):
            await send(line)

    monkeypatch.setattr("minibroker.lab.control.journal.send_entries", send_entries)
    await change_journal(fake_broker, _ON)
    answer = await client.get("/v1/journal/stream?api=Fetch")
    assert answer.headers["content-type"] == "application/jsonl"
    assert "content-length" not in answer.headers
    assert answer.content == b'\n{"sequence":3}\n'


async def test_stream_with_a_wrong_query_is_rejected(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/journal/stream", params={"kind": "x"})
    assert answer.status_code == 400


async def test_assertion_is_checked(client: httpx.AsyncClient, fake_broker: FakeBroker) -> None:
    await change_journal(fake_broker, _ON)
    fake_broker.record_faults(1)
    answer = await client.post("/v1/journal/assert", json={"happened": {"kind": "fault"}})
    assert answer.json()["holds"] is True
    answer = await client.post("/v1/journal/assert", json={"happened": {"api": "Fetch"}})
    assert answer.json()["holds"] is False


async def test_assertion_of_two_kinds_is_rejected(client: httpx.AsyncClient) -> None:
    bodies: list[dict[str, object]] = [{"happened": {}, "absent": {}}, {"wait_ms": 5}]
    for body in bodies:
        answer = await client.post("/v1/journal/assert", json=body)
        assert answer.status_code == 400
        assert "exactly one" in answer.json()["error"]["message"]


async def test_frame_is_dissected(client: httpx.AsyncClient, fake_broker: FakeBroker) -> None:
    await change_journal(fake_broker, _ON)
    fake_broker.record_faults(2)
    assert fake_broker.recording.journal is not None
    fake_broker.recording.journal.add(request(time.perf_counter_ns()))
    answer = await client.get("/v1/journal/frames/3")
    assert "group_id: 'g'" in answer.json()["text"]
    for sequence in ("4", "x", "9" * 5000):
        answer = await client.get(f"/v1/journal/frames/{sequence}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "NO_SUCH_FRAME")
