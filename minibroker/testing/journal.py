"""The journal in a test: what clients and the broker did, and assertions about it.

Owns where the test's part of the journal starts, and waiting. It must never know how entries are
matched, which the broker does, nor import anything beyond the standard library. Invariant: entries
from before `RecordedJournal.start` are never seen. The conditions are those of ``/v1/journal``,
which also answers with the losses of entries that could match: conditions select no losses, unless
they name the kind.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from os import PathLike
from typing import Any, Final, Self

from minibroker.client.control import Control, journal_pages

WAIT_S: Final = 10.0
WAIT_SLICE_S: Final = 20.0
"""Longest wait of one request."""

PAGE_ENTRIES: Final = 1000

_LOST: Final = "lost"

Entry = dict[str, Any]


class DidNotHappen(AssertionError):
    """The journal does not show what a test expects."""


class RecordedJournal:
    """The journal of one broker: ``with broker.journal as journal: ...; journal.entries()``.

    Conditions are ``kind``, ``api``, ``client_id``, ``connection``, ``role``, ``topic``, ``group``,
    ``error`` and ``details``; all given ones must hold.
    """

    def __init__(self, control: Control, *, guarded: bool = False) -> None:
        """``guarded`` leaves the journal on, for other processes that use the broker."""
        self._control = control
        self._guarded = guarded
        self._after = 0

    def start(self) -> Self:
        """Record in every process, and forget what was recorded before."""
        self._after = int(self._control.post("v1", "journal", enabled=True)["last"])
        return self

    def stop(self) -> None:
        """Record no longer; what was recorded remains."""
        if not self._guarded:
            self._control.post("v1", "journal", enabled=False)

    def entries(
        self,
        *,
        details: Mapping[str, object] | None = None,
        decode: bool = False,
        frames: bool = False,
        **conditions: object,
    ) -> list[Entry]:
        """All matching entries, oldest first; without conditions also what was lost between them.

        ``decode`` adds the fields of requests and responses as ``body``, ``frames`` their bytes in
        base64 as ``frame``.
        """
        query = {**conditions, "limit": PAGE_ENTRIES}
        query |= {"decode": _text(decode), "frames": _text(frames)}
        return [
            entry
            for page in journal_pages(self._control, self._after, **query)
            for entry in page["entries"]
            if _is_meant(entry, conditions, details)
        ]

    def save(self, path: str | PathLike[str]) -> int:
        """Write all requests and responses as a capture, for ``minibroker replay``.

        Return their number.
        """
        found = self.entries(frames=True, kind="request,response,lost")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(entry) + "\n" for entry in found)
        return sum(entry["kind"] != _LOST for entry in found)

    def wait_for(
        self,
        *,
        after: Entry | None = None,
        details: Mapping[str, object] | None = None,
        timeout_s: float = WAIT_S,
        decode: bool = False,
        **conditions: object,
    ) -> Entry:
        """Return the first matching entry, also one from before the call, or wait for it.

        Only entries after the entry ``after`` count. Raises `DidNotHappen` after real seconds.
        """
        deadline = time.monotonic() + timeout_s
        query = {**conditions, "decode": _text(decode), "limit": PAGE_ENTRIES}
        query["after"] = self._after if after is None else after["sequence"]
        while True:
            remaining = max(deadline - time.monotonic(), 0)
            query["wait_ms"] = int(min(remaining, WAIT_SLICE_S) * 1000)
            page = self._control.get("v1", "journal", query=query)
            for entry in page["entries"]:
                if _is_meant(entry, conditions, details):
                    return dict(entry)
            if page["entries"]:
                query["after"] = page["entries"][-1]["sequence"]
            elif time.monotonic() >= deadline:
                conditions |= {"details": dict(details)} if details else {}
                raise DidNotHappen(f"no entry with {conditions} within {timeout_s:g} s")

    def assert_happened(
        self, times: int = 1, *, timeout_s: float = 0.0, **conditions: object
    ) -> list[Entry]:
        """Assert that so many entries match, or will within real seconds; return the first 100."""
        return self._check(timeout_s, happened=conditions, times=times)

    def assert_in_order(self, *steps: Mapping[str, object], timeout_s: float = 0.0) -> list[Entry]:
        """Assert that an entry matches each step, each after the one before; return them."""
        return self._check(timeout_s, in_order=[dict(step) for step in steps])

    def assert_absent(self, *, before_ms: float | None = None, **conditions: object) -> None:
        """Assert that no entry matches, or none before a time of the broker's clock."""
        self._check(0.0, absent=conditions, before_ms=before_ms)

    def _check(self, timeout_s: float, **assertion: object) -> list[Entry]:
        wait_ms = int(min(timeout_s, WAIT_SLICE_S) * 1000)
        result = self._control.post(
            "v1", "journal", "assert", **assertion, after=self._after, wait_ms=wait_ms
        )
        if not result["holds"]:
            given = {name: value for name, value in assertion.items() if value is not None}
            raise DidNotHappen(f"{result['text']}: {given}")
        entries: list[Entry] = result["entries"]
        return entries

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _is_meant(
    entry: Entry, conditions: Mapping[str, object], details: Mapping[str, object] | None
) -> bool:
    """Whether an entry of an answer is meant, which is none of the losses that could match."""
    if entry["kind"] == _LOST and (conditions or details):
        kinds = [each.strip() for each in str(conditions.get("kind", "")).split(",")]
        if _LOST not in kinds:
            return False
    return all(entry["details"].get(name) == value for name, value in (details or {}).items())


def _text(flag: bool) -> str:
    return "true" if flag else "false"
