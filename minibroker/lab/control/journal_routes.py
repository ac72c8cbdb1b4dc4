"""Operations of the control API on the journal.

Owns their paths, and the check of an assertion's form. It must never know the web framework or how
entries are collected. Invariant: what is wrong in a query is answered before the first entry.
"""

from __future__ import annotations

from functools import partial
from typing import Final, Protocol

from minibroker.lab.control.journal_shapes import (
    AssertionView,
    EntryQuery,
    FrameView,
    JournalAssertion,
    JournalChange,
    JournaledBackend,
    JournalPage,
    JournalView,
)
from minibroker.lab.control.journal_views import read_query
from minibroker.lab.control.operation import ApiOperation, Stream
from minibroker.lab.control.schema import Fault, InvalidJson

DIGITS_MAX: Final = 16
"""Digits of a sequence."""


class JournalContext(Protocol):
    """The broker that operations use."""

    @property
    def backend(self) -> JournaledBackend:
        """Return the broker."""


async def find_entries(context: JournalContext, query: EntryQuery) -> JournalPage:
    """Return entries of the journal: `?kind=…&api=…&client_id=…&after=…&wait_ms=…`."""
    return await context.backend.journal.find(query)


async def stream_entries(context: JournalContext, query: EntryQuery) -> Stream:
    """Stream entries of the journal as lines of JSON, without end; blank lines mean nothing."""
    read_query(query)
    await context.backend.journal.find(query._replace(limit="0", wait_ms="0"))
    return Stream(partial(context.backend.journal.stream, query), "application/jsonl")


async def dissect_frame(context: JournalContext, sequence: str) -> FrameView:
    """Return what every byte of the frame of a request or response means."""
    is_number = sequence.isascii() and sequence.isdecimal() and len(sequence) < DIGITS_MAX
    return await context.backend.journal.dissect(int(sequence) if is_number else 0)


async def get_journal(context: JournalContext) -> JournalView:
    """Return whether the journal is on, and its size."""
    return await context.backend.journal.view()


async def change_journal(context: JournalContext, change: JournalChange) -> JournalView:
    """Switch the journal on or off; respond when every process records, or none."""
    if change == JournalChange():
        raise InvalidJson([Fault("(body)", "must set at least one of enabled and bytes_max")])
    return await context.backend.journal.change(change)


async def clear_journal(context: JournalContext) -> None:
    """Drop all entries of the journal."""
    await context.backend.journal.clear()


async def assert_entries(context: JournalContext, assertion: JournalAssertion) -> AssertionView:
    """Check what has happened, in which order, or what has not happened."""
    given = [assertion.happened, assertion.in_order, assertion.absent]
    if sum(each is not None for each in given) != 1:
        fault = Fault("(body)", "must have exactly one of happened, in_order and absent")
        raise InvalidJson([fault])
    return await context.backend.journal.check(assertion)


_OFF: Final = {409: "The journal is off."}

JOURNAL_OPERATIONS: Final[tuple[ApiOperation, ...]] = tuple(
    each._replace(summary=(each.run.__doc__ or "").strip())
    for each in (
        ApiOperation(
            "GET",
            "/v1/journal",
            "",
            JournalPage,
            find_entries,
            query=EntryQuery,
            errors=_OFF,
        ),
        ApiOperation("GET", "/v1/journal/state", "", JournalView, get_journal),
        ApiOperation(
            "GET",
            "/v1/journal/stream",
            "",
            "application/jsonl",
            stream_entries,
            query=EntryQuery,
            errors=_OFF,
        ),
        ApiOperation(
            "GET",
            "/v1/journal/frames/{sequence}",
            "",
            FrameView,
            dissect_frame,
            errors={404: "There is no such entry, or its frame is not kept.", **_OFF},
        ),
        ApiOperation(
            "POST",
            "/v1/journal",
            "",
            JournalView,
            change_journal,
            body=JournalChange,
            example={"enabled": True},
        ),
        ApiOperation("DELETE", "/v1/journal", "", None, clear_journal, status=204),
        ApiOperation(
            "POST",
            "/v1/journal/assert",
            "",
            AssertionView,
            assert_entries,
            body=JournalAssertion,
            errors=_OFF,
            example={"happened": {"kind": "request", "api": "Produce"}, "wait_ms": 5000},
        ),
    )
)
