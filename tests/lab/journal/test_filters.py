"""Filters match only what has all the wanted fields."""

from __future__ import annotations

import pytest

from minibroker.lab.journal.entries import EntryKind, JournalEntry
from minibroker.lab.journal.filters import EntryFilter
from tests.lab.journal.entries_of_tests import (
    entry_of,
    metadata_entry,
    request_entry,
    response_entry,
)


@pytest.mark.parametrize(
    ("wanted", "entry"),
    [
        (EntryFilter(), entry_of("clock")),
        (EntryFilter(kinds=frozenset({EntryKind.REQUEST})), request_entry()),
        (EntryFilter(api="HEARTBEAT"), request_entry()),
        (EntryFilter(api="12"), response_entry()),
        (EntryFilter(client_id="report-*"), request_entry(client_id="report-1")),
        (EntryFilter(client_id="report[?]*"), request_entry(client_id="report[?]-1")),
        (EntryFilter(connection="5"), request_entry()),
        (EntryFilter(role="processor-0"), request_entry()),
        (EntryFilter(group="g"), request_entry()),
        (EntryFilter(topic="orders"), metadata_entry("orders")),
        (EntryFilter(error="REBALANCE_IN_PROGRESS"), response_entry(27)),
        (EntryFilter(error="27"), response_entry(27)),
        (EntryFilter(details={"rule": "1"}), entry_of("fault", details={"rule": "1", "at": 2})),
        (
            EntryFilter(group="g"),
            entry_of("state", details={"what": "group", "name": "g", "to": "Stable"}),
        ),
        (EntryFilter(after=3), entry_of("clock", sequence=4)),
    ],
)
def test_filter_of_its_entry_matches(wanted: EntryFilter, entry: JournalEntry) -> None:
    assert wanted.matches(entry)


@pytest.mark.parametrize(
    ("wanted", "entry"),
    [
        (EntryFilter(kinds=frozenset({EntryKind.REQUEST})), response_entry()),
        (EntryFilter(api="Fetch"), request_entry()),
        (EntryFilter(api="Heartbeat"), entry_of("clock")),
        (EntryFilter(client_id="report-*"), request_entry(client_id="other")),
        (EntryFilter(client_id="*"), entry_of("clock")),
        (EntryFilter(connection="6"), request_entry()),
        (EntryFilter(role="worker-0"), request_entry()),
        (EntryFilter(group="m"), request_entry()),  # That is the member.
        (EntryFilter(topic="orders"), metadata_entry("orders-2")),
        (EntryFilter(topic="orders"), entry_of("request", b"orders")),
        (EntryFilter(error="REBALANCE_IN_PROGRESS"), response_entry(0)),
        (EntryFilter(error="NO_SUCH_ERROR"), response_entry(0)),
        (EntryFilter(error="0"), request_entry()),
        (EntryFilter(details={"rule": "1"}), entry_of("fault", details={"rule": "2"})),
        (
            EntryFilter(topic="g"),
            entry_of("state", details={"what": "group", "name": "g", "to": "Stable"}),
        ),
        (EntryFilter(after=3), entry_of("clock", sequence=3)),
    ],
)
def test_filter_of_another_entry_does_not_match(wanted: EntryFilter, entry: JournalEntry) -> None:
    assert not wanted.matches(entry)
