from __future__ import annotations

from minibroker.lab.verdicts.connection_rules import SHORT_CONNECTIONS_MIN
from minibroker.lab.verdicts.judging import RuleOutcome
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataResponse
from minibroker_protocol.registry import ApiKey
from tests.lab.verdicts.written import WrittenJournal


def journal_of_attempts(gaps_ms: list[float]) -> WrittenJournal:
    """A client that is served once, and then refused for a while."""
    journal = WrittenJournal()
    journal.open("0")
    journal.ask_metadata("0")
    journal.close("0", "fault_rule")
    for number, gap_ms in enumerate(gaps_ms, 1):
        journal.now += gap_ms
        journal.refuse(str(number))
    journal.now += 1000
    journal.open("last")
    journal.ask_metadata("last")
    return journal


def doubling(first_ms: float, max_ms: float, count: int) -> list[float]:
    """Times as in Kafka's clients, with a deterministic jitter of 20 %."""
    waits = [min(first_ms * 2**number, max_ms) for number in range(count)]
    return [wait * (0.8 + 0.1 * (number % 5)) for number, wait in enumerate(waits)]


def test_doubling_times_between_attempts_are_kept() -> None:
    journal = journal_of_attempts(doubling(50, 1000, 15))
    assert journal.findings("reconnect-backoff") == []
    assert journal.findings("reconnect-backoff-grows") == []


def test_attempts_without_a_pause_are_found() -> None:
    journal = journal_of_attempts([5.0] * 120)
    [text] = journal.findings("reconnect-backoff")
    assert text == "connected 101 times within 500 ms, although no connection was served"


def test_attempts_of_many_clients_with_one_id_are_kept() -> None:
    """Sixty clients lose their connections and make five attempts each in the first second."""
    journal = WrittenJournal()
    for number in range(60):
        journal.open(f"served-{number}")
        journal.ask_metadata(f"served-{number}")
    for number in range(300):
        journal.now += 3
        journal.refuse(f"refused-{number}")
    assert journal.findings("reconnect-backoff") == []
    for number in range(700):
        journal.refuse(f"fast-{number}")
    assert len(journal.findings("reconnect-backoff")) == 1


def test_times_between_attempts_that_do_not_grow_are_found() -> None:
    journal = journal_of_attempts([100.0] * 60)
    assert journal.findings("reconnect-backoff") == []
    [text] = journal.findings("reconnect-backoff-grows")
    assert text.startswith("connected 20 times in the first 2000 ms and 21 times in the last ones")


def test_equal_times_between_attempts_are_found() -> None:
    [text] = journal_of_attempts([100.0] * 10).findings("reconnect-backoff-jitter")
    assert text == (
        "connected again without jitter: 8 of 8 waits were the one before or its double, within 5%"
    )


def test_times_between_attempts_that_double_exactly_are_found() -> None:
    journal = WrittenJournal()
    for outage in range(3):
        journal.open(f"served-{outage}")
        for _ in range(10):
            journal.ask_metadata(f"served-{outage}")
            journal.now += 500
        journal.close(f"served-{outage}", "fault_rule")
        for number, gap_ms in enumerate((50.0, 100.0, 200.0, 400.0, 800.0)):
            journal.now += gap_ms
            journal.refuse(f"{outage}-{number}")
        journal.now += 1000
    assert len(journal.findings("reconnect-backoff-jitter")) == 1


def test_varied_times_between_attempts_are_kept() -> None:
    gaps_ms = [95.0, 112.0, 83.0, 104.0, 118.0, 90.0, 81.0, 99.0, 114.0, 85.0]
    verdict = journal_of_attempts(gaps_ms).verdict("reconnect-backoff-jitter")
    assert verdict.outcome is RuleOutcome.KEPT


def test_few_equal_times_between_attempts_are_no_situation() -> None:
    verdict = journal_of_attempts([100.0] * 9).verdict("reconnect-backoff-jitter")
    assert verdict.outcome is RuleOutcome.NOT_OBSERVED


def test_attempts_to_replace_several_connections_are_no_situation() -> None:
    journal = WrittenJournal()
    for name in ("a", "b"):
        journal.open(name)
        journal.ask_metadata(name)
    for number in range(20):
        journal.now += 100
        journal.refuse(str(number))
    verdict = journal.verdict("reconnect-backoff-jitter")
    assert verdict.outcome is RuleOutcome.NOT_OBSERVED


def test_few_failed_attempts_are_no_situation() -> None:
    journal = journal_of_attempts([1.0] * 4)
    assert journal.verdict("reconnect-backoff").outcome is RuleOutcome.NOT_OBSERVED


def test_success_between_failures_starts_again() -> None:
    journal = WrittenJournal()
    for number in range(120):
        journal.open(f"served-{number}")
        journal.ask_metadata(f"served-{number}")
        journal.refuse(f"refused-{number}")
    assert journal.verdict("reconnect-backoff").outcome is RuleOutcome.NOT_OBSERVED


def test_attempts_during_a_moved_clock_are_no_situation() -> None:
    journal = WrittenJournal()
    journal.open("0")
    journal.ask_metadata("0")
    for number in range(1, 120):
        journal.refuse(str(number))
        journal.clock()
    assert journal.verdict("reconnect-backoff").outcome is RuleOutcome.NOT_OBSERVED


def test_connection_for_each_request_is_found() -> None:
    journal = WrittenJournal()
    for number in range(SHORT_CONNECTIONS_MIN):
        journal.open(str(number))
        journal.ask_versions(str(number), {ApiKey.METADATA: (0, 9)})
        journal.ask_metadata(str(number))
        journal.close(str(number))
    [text] = journal.findings("connection-reuse")
    assert text == (
        "10 of 10 connections were for a single request, unless as many clients have this client id"
    )


def test_connections_that_the_broker_closes_are_not_held_against_the_client() -> None:
    journal = WrittenJournal()
    for number in range(SHORT_CONNECTIONS_MIN):
        journal.open(str(number))
        journal.ask_metadata(str(number))
        journal.close(str(number), "fault_rule")
    assert journal.findings("connection-reuse") == []


def test_connection_for_many_requests_is_kept() -> None:
    journal = WrittenJournal()
    for number in range(3):
        journal.open(str(number))
        for _ in range(20):
            journal.ask_metadata(str(number))
        journal.close(str(number))
    assert journal.findings("connection-reuse") == []


def test_repeated_correlation_id_is_found() -> None:
    journal = WrittenJournal()
    journal.ask_metadata("1")
    journal.ask_metadata("1")
    assert journal.findings("correlation-ids") == []
    for _ in range(2):
        sent = journal.send("1", MetadataRequest(topics=[]), 9, correlation_id=99)
        journal.answer(sent, MetadataResponse())
    assert journal.findings("correlation-ids") == [
        "sent two requests in a row with the correlation id 99"
    ]
