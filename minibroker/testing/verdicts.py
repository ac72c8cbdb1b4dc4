"""Verdicts on clients in tests: ``assert_well_behaved(broker, "my-app")``.

Owns the reading of a broker's journal and the message of a failed assertion. It must never know a
rule. Invariant: entries are read in pages, so an answer of the broker is bounded; a client that the
journal does not have is an error, not a client without findings, and so is a loss of entries.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, Protocol

from minibroker.client.control import journal_pages
from minibroker.lab.journal.entries import JournalEntry
from minibroker.lab.verdicts.judging import ClientReport, judge
from minibroker.lab.verdicts.report import report_text
from minibroker.lab.verdicts.saved_journal import entry_of_json

PAGE_ENTRIES: Final = 5000
"""Entries that are read at once."""


class ClientMisbehaved(AssertionError):
    """A client broke rules of good behavior; ``report`` has the verdicts."""

    def __init__(self, report: ClientReport) -> None:
        super().__init__(report_text(report))
        self.report = report


class JournalIncomplete(AssertionError):
    """Entries of the journal are lost, so it is unknown whether a client broke a rule."""

    def __init__(self, report: ClientReport) -> None:
        super().__init__(report_text(report))
        self.report = report


class BrokerWithJournal(Protocol):
    """A broker with a control API, e.g. ``MiniBroker``."""

    @property
    def control(self) -> Any:
        """The control API."""


def journal_entries(broker: BrokerWithJournal, after: int = 0) -> tuple[list[JournalEntry], int]:
    """Return the entries of a broker's journal after a sequence.

    Return also how many it does not have yet, because a process does not respond.
    """
    entries: list[JournalEntry] = []
    pending = 0
    for page in journal_pages(broker.control, after, frames="true", limit=PAGE_ENTRIES):
        entries += map(entry_of_json, page["entries"])
        pending = page["pending"]
    return entries, pending


def judge_client(
    broker: BrokerWithJournal,
    client_id: str,
    *,
    allow: Collection[str] = (),
    after: int = 0,
    namespace: str | None = None,
) -> ClientReport:
    """Judge a client by the journal of a broker, which must be on; ``*`` matches any text.

    ``allow`` names rules that may be broken, ``after`` is the sequence of the last entry that is
    not judged. ``namespace`` leaves the connections on which the client used names of this
    namespace, as the client knows them. Raises ``UnknownClient`` and ``UnknownRule``.
    """
    entries, pending = journal_entries(broker, after)
    return judge(entries, client_id, allowed=allow, dropped=pending, namespace=namespace)


def assert_well_behaved(
    broker: BrokerWithJournal,
    client_id: str,
    *,
    allow: Collection[str] = (),
    after: int = 0,
    namespace: str | None = None,
) -> ClientReport:
    """Judge a client as `judge_client`, and raise `ClientMisbehaved` if it broke a rule.

    Raises `JournalIncomplete` if it broke none in a journal without all entries.
    """
    report = judge_client(broker, client_id, allow=allow, after=after, namespace=namespace)
    if report.broken:
        raise ClientMisbehaved(report)
    if report.dropped:
        raise JournalIncomplete(report)
    return report
