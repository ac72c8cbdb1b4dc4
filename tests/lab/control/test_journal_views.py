"""Queries become filters, entries become JSON, and what cannot match is an error."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import pytest

from minibroker.lab.control.errors import json_bytes
from minibroker.lab.control.journal_shapes import EntryConditions, EntryQuery
from minibroker.lab.control.journal_views import (
    dissected,
    read_conditions,
    read_query,
    view_of,
    views,
)
from minibroker.lab.control.schema import InvalidJson
from minibroker.lab.journal.entries import EntryKind
from minibroker.lab.journal.filters import EntryFilter
from minibroker_protocol.compiler import encode
from minibroker_protocol.headers import encode_response_header
from minibroker_protocol.messages.describe_client_quotas import (
    DescribeClientQuotasResponse,
    EntryData,
    ValueData,
)
from minibroker_protocol.registry import ApiKey
from tests.lab.journal.entries_of_tests import entry_of, request_entry, response_entry


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
