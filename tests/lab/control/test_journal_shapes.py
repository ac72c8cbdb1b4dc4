"""What the journal's operations take and return is complete and described."""

from __future__ import annotations

from typing import get_args

from minibroker.lab.control.backend import Backend
from minibroker.lab.control.journal_shapes import (
    EntryConditions,
    EntryKindName,
    EntryQuery,
    EntryView,
    JournalAssertion,
    JournaledBackend,
)
from minibroker.lab.control.schema import component, parse
from minibroker.lab.journal.entries import EntryKind, JournalEntry


def test_backend_has_a_journal() -> None:
    assert JournaledBackend in Backend.__mro__


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
