from __future__ import annotations

import json
from importlib import resources

import pytest

from minibroker.lab.verdicts.judging import RuleOutcome
from minibroker.lab.verdicts.throttle_rules import IDLE_MS
from minibroker_protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from minibroker_protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from minibroker_protocol.messages.fetch import FetchRequest, FetchResponse
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataResponse
from minibroker_protocol.messages.produce import ProduceRequest, ProduceResponse
from minibroker_protocol.registry import ApiKey, obeyed_throttle_versions
from tests.lab.verdicts.written import WrittenJournal

RULE = "obeys-throttle"
THROTTLE_MS = 1000


def produce(journal: WrittenJournal, throttle_ms: int = 0, version: int = 9) -> None:
    response = ProduceResponse(throttle_time_ms=throttle_ms)
    journal.ask("1", ProduceRequest(acks=-1), version, response)


def fetch(journal: WrittenJournal, throttle_ms: int = 0) -> None:
    journal.ask("1", FetchRequest(), 11, FetchResponse(throttle_time_ms=throttle_ms))


def test_request_during_a_throttle_is_found() -> None:
    journal = WrittenJournal()
    produce(journal, THROTTLE_MS)
    journal.now += IDLE_MS + 50
    produce(journal)
    [text] = journal.findings(RULE)
    assert text == (
        "sent Produce v9 150 ms after a response to Produce v9 that throttled it for 1000 ms; the "
        "broker did not mute the connection"
    )


def test_fetch_right_after_a_throttled_fetch_is_found() -> None:
    journal = WrittenJournal()
    fetch(journal, THROTTLE_MS)
    fetch(journal)
    assert len(journal.findings(RULE)) == 1


def test_produce_that_was_in_flight_is_no_finding() -> None:
    journal = WrittenJournal()
    produce(journal, THROTTLE_MS)
    produce(journal)
    produce(journal)
    journal.now += THROTTLE_MS
    produce(journal)
    assert journal.findings(RULE) == []


def test_request_after_the_throttle_is_kept_on_an_unmuted_connection() -> None:
    journal = WrittenJournal()
    produce(journal, THROTTLE_MS)
    journal.fault("1", action="throttle", mute=False)
    journal.now += THROTTLE_MS
    produce(journal)
    assert journal.findings(RULE) == []


def test_muted_connection_shows_nothing() -> None:
    journal = WrittenJournal()
    fetch(journal, THROTTLE_MS)
    journal.fault("1", action="throttle", mute=True)
    journal.now += THROTTLE_MS
    fetch(journal)
    assert journal.verdict(RULE).outcome is RuleOutcome.NOT_OBSERVED


def test_version_that_the_broker_throttles_is_no_situation() -> None:
    journal = WrittenJournal()
    produce(journal, THROTTLE_MS, version=5)
    journal.now += 500
    produce(journal)
    assert journal.verdict(RULE).outcome is RuleOutcome.NOT_OBSERVED


def test_other_connections_may_be_used() -> None:
    journal = WrittenJournal()
    produce(journal, THROTTLE_MS)
    journal.now += 500
    journal.ask("2", MetadataRequest(topics=[]), 9, MetadataResponse())
    assert journal.verdict(RULE).outcome is RuleOutcome.NOT_OBSERVED


def test_moved_clock_ends_the_observation() -> None:
    journal = WrittenJournal()
    fetch(journal, THROTTLE_MS)
    journal.clock()
    fetch(journal)
    assert journal.verdict(RULE).outcome is RuleOutcome.NOT_OBSERVED


@pytest.mark.parametrize(
    ("software", "is_judged"),
    [
        (("apache-kafka-java", "4.3.1"), False),
        (("apache-kafka-java", "3.9.0"), False),
        (("apache-kafka-java", "4.4.0"), True),
        (("apache-kafka-java", "4.10.0"), True),
        (("librdkafka", "2.3.0"), True),
    ],
)
def test_java_obeys_every_response_from_version_4_4(
    software: tuple[str, str], is_judged: bool
) -> None:
    """KAFKA-20828: older versions ignored the throttle time of newer responses."""
    journal = WrittenJournal()
    name, version = software
    request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
    journal.ask("1", request, 3, ApiVersionsResponse())
    for _ in range(2):
        journal.ask(
            "1",
            ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1),
            0,
            ConsumerGroupHeartbeatResponse(
                member_id="m", member_epoch=1, throttle_time_ms=THROTTLE_MS
            ),
        )
        journal.now += IDLE_MS + 50
    assert (journal.verdict(RULE).outcome is RuleOutcome.BROKEN) is is_judged
    fetch(journal, THROTTLE_MS)
    fetch(journal)
    assert journal.verdict(RULE).outcome is RuleOutcome.BROKEN


OLDER_THAN_KIP_219 = [key for key in ApiKey if obeyed_throttle_versions(key).low > 0]


@pytest.mark.parametrize("key", OLDER_THAN_KIP_219)
def test_versions_are_those_of_kafkas_message_definitions(key: int) -> None:
    schemas = resources.files("kafka.protocol.schemas.resources")
    for path in schemas.iterdir():
        if not path.name.endswith("Response.json"):
            continue
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        document = json.loads("\n".join(each for each in lines if "//" not in each.lstrip()[:2]))
        if document["apiKey"] == key:
            version = obeyed_throttle_versions(key).low
            assert f"Starting in version {version}, on quota violation" in text or version == 6
