from __future__ import annotations

from minibroker.lab.journal.entries import EntryKind
from minibroker.lab.verdicts.judging import RuleOutcome
from minibroker_protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from tests.lab.verdicts.written import WrittenJournal


def authenticate(journal: WrittenJournal) -> None:
    sent = journal.send("1", SaslAuthenticateRequest(), 2, keep_frame=False)
    journal.answer(sent, SaslAuthenticateResponse())


def test_expired_session_is_found() -> None:
    journal = WrittenJournal()
    journal.open("1")
    authenticate(journal)
    journal.ask_metadata("1")
    journal.close("1", "session_expired")
    assert len(journal.findings("reauthentication")) == 1


def test_second_authentication_is_kept() -> None:
    journal = WrittenJournal()
    authenticate(journal)
    journal.ask_metadata("1")
    authenticate(journal)
    assert journal.findings("reauthentication") == []


def note_session(journal: WrittenJournal, before: str | None) -> None:
    details = {"what": "session", "name": "User:a", "from": before, "to": "authenticated"}
    journal.add(EntryKind.STATE, connection="1", details=details)


def test_session_that_is_renewed_is_kept() -> None:
    journal = WrittenJournal()
    note_session(journal, None)
    journal.ask_metadata("1")
    assert journal.verdict("reauthentication").outcome is RuleOutcome.NOT_OBSERVED
    note_session(journal, "authenticated")
    assert journal.findings("reauthentication") == []


def test_single_authentication_is_no_situation() -> None:
    journal = WrittenJournal()
    authenticate(journal)
    authenticate(journal)  # SCRAM has two rounds.
    journal.ask_metadata("1")
    journal.close("1")
    assert journal.verdict("reauthentication").outcome is RuleOutcome.NOT_OBSERVED
