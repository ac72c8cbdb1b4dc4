from __future__ import annotations

from typing import Any

import pytest

from minibroker.lab.journal.entries import Loss, LossReason
from minibroker.lab.verdicts.judging import UnknownClient
from minibroker.testing import ClientMisbehaved, JournalIncomplete, assert_well_behaved
from minibroker.testing import verdicts as module
from minibroker.testing.verdicts import judge_client
from minibroker_protocol.registry import ApiKey
from tests.lab.verdicts.test_saved_journal import saved
from tests.lab.verdicts.written import CLIENT, WrittenJournal


class FakeBroker:
    """A broker that has only a journal."""

    def __init__(self, journal: WrittenJournal) -> None:
        self._entries = [saved(entry) for entry in journal.entries]
        self.control = self

    def add(self, entry: dict[str, Any]) -> None:
        self._entries.append(entry)

    def get(self, *path: str, query: dict[str, Any]) -> dict[str, Any]:
        assert path == ("v1", "journal")
        assert query["frames"] == "true"
        later = [each for each in self._entries if each["sequence"] > query["after"]]
        limit = query["limit"]
        return {"entries": later[:limit], "has_more": len(later) > limit, "pending": 0}


def broker(advertised: dict[ApiKey, tuple[int, int]]) -> FakeBroker:
    journal = WrittenJournal()
    journal.ask_versions("1", advertised)
    journal.ask_metadata("1")
    return FakeBroker(journal)


def test_well_behaved_client_passes() -> None:
    report = assert_well_behaved(broker({ApiKey.METADATA: (0, 12)}), CLIENT)
    assert report.requests == 2


def test_client_without_findings_in_an_incomplete_journal_fails() -> None:
    found = broker({ApiKey.METADATA: (0, 12)})
    found.add(saved(Loss("processor-0", 4, LossReason.PROCESS_ENDED, 0.0).entry(9, 1.0)))
    with pytest.raises(JournalIncomplete, match=r"no finding, but 4 entries .* are lost"):
        assert_well_behaved(found, CLIENT)


def test_misbehaving_client_fails_with_each_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_ENTRIES", 1)
    with pytest.raises(ClientMisbehaved, match="sent Metadata v9, which was not advertised"):
        assert_well_behaved(broker({ApiKey.PRODUCE: (0, 12)}), CLIENT)


def test_allowed_rule_passes() -> None:
    found = broker({ApiKey.PRODUCE: (0, 12)})
    assert_well_behaved(found, CLIENT, allow=["advertised-versions"])


def test_entries_before_a_sequence_are_not_judged() -> None:
    found = broker({ApiKey.PRODUCE: (0, 12)})
    assert judge_client(found, CLIENT, after=2).requests == 1
    with pytest.raises(UnknownClient):
        judge_client(found, CLIENT, after=4)
