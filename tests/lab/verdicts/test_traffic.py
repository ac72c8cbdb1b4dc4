from __future__ import annotations

from minibroker.lab.journal.entries import EntryKind
from minibroker.lab.verdicts.traffic import NoSuchClient, traffic_of
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.lab.verdicts.written import WrittenJournal


def test_responses_are_paired_by_correlation_id() -> None:
    journal = WrittenJournal()
    first = journal.send("1", MetadataRequest(topics=[]), 9)
    second = journal.send("1", MetadataRequest(topics=[]), 9)
    journal.answer(first, MetadataResponse())
    traffic = journal.traffic
    assert [each.sent for each in traffic.exchanges] == [first, second]
    assert [each.answer is None for each in traffic.exchanges] == [False, True]


def test_other_clients_are_left_out() -> None:
    journal = WrittenJournal()
    journal.ask_metadata("1")
    journal.client_id = "other"
    journal.ask_metadata("2")
    assert [each.name for each in journal.traffic.connections] == ["1"]


def test_pattern_matches_several_client_ids() -> None:
    journal = WrittenJournal("consumer-1")
    journal.ask_metadata("1")
    journal.client_id = "producer-1"
    journal.ask_metadata("2")
    found = traffic_of(journal.entries, "*-1")
    assert not isinstance(found, NoSuchClient)
    assert len(found.connections) == 2


def test_unknown_client_is_answered_with_those_that_exist() -> None:
    journal = WrittenJournal("b")
    journal.ask_metadata("1")
    journal.client_id = "a"
    journal.ask_metadata("2")
    found = traffic_of(journal.entries, "c")
    assert str(found) == "no request of the client id 'c'; client ids in the journal: a, b"
    assert str(traffic_of([], "c")).endswith("client ids in the journal: none")


def test_silent_connection_belongs_to_the_only_client_of_its_address() -> None:
    journal = WrittenJournal()
    journal.open("1")
    journal.ask_metadata("1")
    journal.refuse("2")
    journal.open("3", host="10.0.0.9")
    assert [each.name for each in journal.traffic.connections] == ["1", "2"]


def test_rejected_connection_is_left_out() -> None:
    journal = WrittenJournal()
    journal.open("1")
    journal.ask_metadata("1")
    journal.add(EntryKind.CONNECTION_REJECTED, connection="2", address=journal.entries[0].address)
    assert [each.name for each in journal.traffic.connections] == ["1"]


def test_silent_connection_of_a_shared_address_is_left_out() -> None:
    journal = WrittenJournal()
    journal.open("1")
    journal.ask_metadata("1")
    journal.refuse("2")
    journal.client_id = "other"
    journal.open("3")
    journal.ask_metadata("3")
    assert [each.name for each in journal.traffic.connections] == ["1"]


def test_clock_is_steady_between_its_changes() -> None:
    journal = WrittenJournal()
    journal.ask_metadata("1")  # 1, 2
    journal.clock()  # 3
    journal.ask_metadata("1")  # 4, 5
    journal.clock(frozen=True)  # 6
    journal.ask_metadata("1")  # 7, 8
    journal.clock(frozen=False)  # 9
    journal.ask_metadata("1")  # 10, 11
    traffic = journal.traffic
    steady = [traffic.is_steady(first, first + 1) for first in (1, 2, 3, 4, 6, 7, 8, 10)]
    assert steady == [True, False, False, True, False, False, False, True]


def test_last_entry_is_that_of_the_client() -> None:
    journal = WrittenJournal()
    journal.ask_metadata("1")
    journal.client_id = "other"
    journal.ask_metadata("2")
    last = journal.traffic.last
    assert last is not None
    assert last.sequence == 2
