"""Requests, responses and connections are recorded by every way that they can take."""

from __future__ import annotations

import base64
import marshal
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from minibroker.broker.metrics.log import EventLog
from minibroker.lab.journal.entries import FRAME_BYTES_MAX, Loss, LossReason
from minibroker.lab.observers.request_journal import (
    JournalFiles,
    restored,
    restored_chunks,
    saved,
    saved_chunks,
)
from minibroker.testing import MiniBroker
from minibroker.testing.journal import RecordedJournal
from minibroker_protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from minibroker_protocol.messages.sasl_handshake import SaslHandshakeRequest
from minibroker_protocol.schema import Message
from tests.broker.network.raw_client import RawClient
from tests.broker.network.test_direct_requests import batch
from tests.lab.journal.entries_of_tests import entry_of, request_entry
from tests.lab.journal.records_of_tests import chunk, exchange, noted

HEARTBEAT = HeartbeatRequest(group_id="g", member_id="m")


@pytest.fixture(scope="module")
def broker() -> Iterator[MiniBroker]:
    with MiniBroker(settings={"journal.enable": True}) as started:
        started.create_topic("t")
        started.create_topic("large")
        yield started


@pytest.fixture
def journal(broker: MiniBroker) -> RecordedJournal:
    return broker.journal.start()


@pytest.fixture
def client(broker: MiniBroker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers, "recorded") as connected:
        yield connected


def produce(value: bytes = b"x", topic: str = "t") -> ProduceRequest:
    data = PartitionProduceData(index=0, records=batch(value))
    topics = [TopicProduceData(name=topic, partition_data=[data])]
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics)


def fetch(max_wait_ms: int = 0, topic: str = "t") -> FetchRequest:
    partition = FetchPartition(partition=0, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic=topic, partitions=[partition])]
    return FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=1 << 30, max_bytes=1 << 20, topics=topics
    )


@pytest.mark.parametrize(
    ("request_", "version", "api"),
    [
        (HEARTBEAT, 4, "Heartbeat"),  # In one step.
        (produce(), 9, "Produce"),
        (fetch(), 4, "Fetch"),
        (fetch(max_wait_ms=20), 11, "Fetch"),  # Waits in one step.
        (
            ApiVersionsRequest(client_software_name="a", client_software_version="1"),
            3,
            "ApiVersions",
        ),
        (MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9, "Metadata"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_request_and_response_are_recorded_with_their_bytes(
    journal: RecordedJournal, client: RawClient, request_: Message, version: int, api: str
) -> None:
    for _ in range(2):  # The second one may be answered from a cache.
        journal.start()
        client.send(request_, version)
        answer = client.receive_frame()
        sent, received = journal.entries(api=api, frames=True, decode=True)
        assert (sent["kind"], received["kind"]) == ("request", "response")
        assert base64.b64decode(received["frame"]) == answer[4:]
        assert received["frame_bytes"] == len(answer) - 4
        assert len(base64.b64decode(sent["frame"])) == sent["frame_bytes"]
        assert sent["body"] is not None
        assert received["body"] is not None
        for entry in (sent, received):
            assert entry["client_id"] == "recorded"
            assert (entry["version"], entry["correlation_id"]) == (version, client.correlation_id)
            assert (entry["role"], entry["connection"]) == ("processor-0", sent["connection"])
        assert set(received["stages"]) == {"queue", "execution", "network", "send", "total"}


@pytest.mark.parametrize("layout", [{}, {"process.mode": "separate", "num.io.threads": 2}])
def test_wait_of_a_fetch_is_not_time_in_a_queue(layout: dict[str, Any]) -> None:
    several = fetch(max_wait_ms=300)
    several.topics[0].partitions.append(FetchPartition(partition=1, partition_max_bytes=1 << 20))
    with MiniBroker(settings={"journal.enable": True, "num.partitions": 4, **layout}) as broker:
        broker.create_topic("t")
        with RawClient(broker.bootstrap_servers, "waiting") as client:
            for request in (fetch(max_wait_ms=300), several):
                journal = broker.journal.start()
                assert client.ask(request, 11).responses
                stages = journal.entries(api="Fetch")[-1]["stages"]
                assert stages["total"] >= 300
                assert stages["queue"] < 150


def test_large_frames_are_not_kept(journal: RecordedJournal, client: RawClient) -> None:
    client.ask(produce(bytes(FRAME_BYTES_MAX), "large"), 9)
    assert client.ask(fetch(topic="large"), 4).responses
    entries = journal.entries(frames=True)
    assert [(entry["api"], entry["kind"]) for entry in entries if entry["api"]] == [
        ("Produce", "request"),
        ("Produce", "response"),
        ("Fetch", "request"),
        ("Fetch", "response"),
    ]
    kept = [entry["frame"] is not None for entry in entries if entry["api"]]
    assert kept == [False, True, True, False]
    large = [entry for entry in entries if entry["frame_bytes"] > FRAME_BYTES_MAX]
    assert len(large) == 2
    assert all(entry["client_id"] == "recorded" for entry in large)


def test_frames_with_secrets_are_not_kept(journal: RecordedJournal, client: RawClient) -> None:
    upsertion = ScramCredentialUpsertion(
        name="alice", mechanism=1, iterations=4096, salt=b"salt", salted_password=b"secret"
    )
    client.ask(AlterUserScramCredentialsRequest(upsertions=[upsertion]), 0)
    sent, received = journal.entries(api="AlterUserScramCredentials", frames=True)
    assert (sent["frame"], received["frame"]) == (None, None)
    assert sent["frame_bytes"] > 0


def test_request_that_gets_no_response_is_recorded(
    journal: RecordedJournal, broker: MiniBroker
) -> None:
    with RawClient(broker.bootstrap_servers, "quiet") as client:
        request = produce()
        request.acks = 0
        client.send(request, 9)
        client.ask(HEARTBEAT, 4)
        request.topic_data[0].partition_data[0].index = 77
        client.send(request, 9)
        assert client.receive_frame() == b""
    kinds = [(entry["kind"], entry["api"]) for entry in journal.entries(client_id="quiet")]
    closed = journal.wait_for(kind="connection_closed", client_id="quiet")
    assert kinds[:4] == [
        ("request", "Produce"),
        ("request", "Heartbeat"),
        ("response", "Heartbeat"),
        ("request", "Produce"),
    ]
    assert closed["details"]["reason"] == "acks_zero_error"


def test_connection_is_recorded_from_its_start_to_its_end(
    journal: RecordedJournal, broker: MiniBroker
) -> None:
    with RawClient(broker.bootstrap_servers, "short") as client:
        client.ask(HEARTBEAT, 4)
    closed = journal.wait_for(kind="connection_closed", client_id="short")
    entries = journal.entries(connection=closed["connection"])
    assert [entry["kind"] for entry in entries] == [
        "connection_opened",
        "request",
        "response",
        "connection_closed",
    ]
    assert {entry["address"] for entry in entries} == {closed["address"]}
    assert closed["details"]["reason"] == "client_closed"


def test_request_is_recorded_while_it_waits(
    journal: RecordedJournal, broker: MiniBroker, client: RawClient
) -> None:
    with broker.faults as faults:
        rule = faults.add("hold", api="Heartbeat", name="beats")
        client.send(HEARTBEAT, 4)
        rule.wait()
        fault = journal.wait_for(kind="fault", details={"rule": "beats"})
        assert (fault["api"], fault["correlation_id"]) == ("Heartbeat", client.correlation_id)
        assert fault["details"]["action"] == "hold"
        journal.assert_absent(kind="response", api="Heartbeat")
        rule.release()
        client.receive(HEARTBEAT, 4)
    journal.assert_in_order(
        {"kind": "request", "api": "Heartbeat"},
        {"kind": "fault"},
        {"kind": "response", "api": "Heartbeat"},
    )


def test_damaged_response_is_recorded_as_it_was_sent(
    journal: RecordedJournal, broker: MiniBroker, client: RawClient
) -> None:
    with broker.faults as faults:
        faults.add("corrupt", api="Heartbeat", part="correlation_id")
        client.send(HEARTBEAT, 4)
        answer = client.receive_frame()
    (entry,) = journal.entries(kind="response", api="Heartbeat", frames=True)
    assert base64.b64decode(entry["frame"]) == answer[4:]


def test_connections_that_rules_refuse_or_close_are_recorded(
    journal: RecordedJournal, broker: MiniBroker, client: RawClient
) -> None:
    client.ask(HEARTBEAT, 4)
    with broker.faults as faults:
        faults.add("close", client_id="recorded", name="closing")
        assert client.receive_bytes(1) == b""
        faults.add("refuse", name="refusing")
        with suppress(ConnectionError), RawClient(broker.bootstrap_servers) as refused:
            refused.receive_bytes(1)
        journal.wait_for(kind="fault", details={"rule": "refusing"})
    journal.assert_happened(kind="fault", details={"rule": "closing", "action": "close"})
    journal.assert_happened(2, kind="connection_closed", details={"reason": "fault_rule"})


def test_changes_of_clock_topics_and_groups_are_recorded(
    journal: RecordedJournal, broker: MiniBroker
) -> None:
    broker.create_topic("fresh")
    broker.advance(1000)
    broker.delete_topic("fresh")
    entries = journal.entries(kind="state,clock")
    assert [entry["kind"] for entry in entries] == ["state", "clock", "state"]
    assert [entry["role"] for entry in entries] == ["controller"] * 3
    assert len(journal.entries(kind="state", topic="fresh")) == 2
    clock = entries[1]["details"]
    assert clock["to"] - clock["from"] >= 1000


def test_clock_that_a_rule_advances_is_recorded(
    journal: RecordedJournal, broker: MiniBroker, client: RawClient
) -> None:
    with broker.faults as faults:
        faults.add("advance", api="Heartbeat", advance_ms=5000, first=1)
        client.ask(HEARTBEAT, 4)
    journal.assert_in_order(
        {"kind": "request", "api": "Heartbeat"},
        {"kind": "clock"},
        {"kind": "response", "api": "Heartbeat"},
    )
    (moved,) = journal.entries(kind="clock")
    assert moved["details"]["to"] - moved["details"]["from"] >= 5000


@pytest.mark.parametrize("mute", [False, True])
def test_throttle_of_a_rule_says_whether_it_mutes(
    journal: RecordedJournal, broker: MiniBroker, client: RawClient, mute: bool
) -> None:
    with broker.faults as faults:
        faults.add("throttle", api="Heartbeat", throttle_ms=10, mute=mute)
        assert client.ask(HEARTBEAT, 4).throttle_time_ms == 10
    (fault,) = journal.entries(kind="fault")
    assert fault["details"]["mute"] is mute


def test_authentications_are_recorded_as_states_of_the_session() -> None:
    jaas = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    settings = {
        "journal.enable": True,
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "connections.max.reauth.ms": 60_000,
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{jaas} user_alice="secret";',
    }
    with MiniBroker(settings=settings) as broker:
        broker.journal.start()
        with RawClient(broker.bootstrap_servers, "alice-app") as client:
            for _ in range(2):
                client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
                token = SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret")
                assert client.ask(token, 1).error_code == 0
                client.ask(HEARTBEAT, 4)
        first, second = broker.journal.entries(kind="state", details={"what": "session"})
        assert first["details"]["name"] == second["details"]["name"] == "User:alice"
        assert [first["details"]["from"], second["details"]["from"]] == [None, "authenticated"]
        assert first["connection"] == second["connection"] is not None
        assert first["client_id"] == "alice-app"
        assert "secret" not in str(broker.journal.entries(frames=True))


# ------------ What a process saves before it is killed is read once, by a process of the same start


def files(directory: Path, run: int = 1) -> JournalFiles:
    return JournalFiles(directory, run, EventLog("test"))


def test_journal_is_read_once(tmp_path: Path) -> None:
    entries = [request_entry(stages={"total": 1.5}), entry_of("state", details={"what": "x"})]
    files(tmp_path).save_journal(entries)
    assert files(tmp_path).take_journal() == entries
    assert files(tmp_path).take_journal() == ()


def test_journal_of_another_start_is_removed(tmp_path: Path) -> None:
    files(tmp_path, 1).save_journal([request_entry()])
    assert files(tmp_path, 2).take_journal() == ()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [0, 4, 8, 20])
def test_journal_that_is_cut_off_has_nothing(tmp_path: Path, size: int) -> None:
    files(tmp_path).save_journal([request_entry()])
    (file,) = tmp_path.iterdir()
    os.truncate(file, size)
    assert list(files(tmp_path).take_journal()) == []


def test_file_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    files(tmp_path / "none").save_journal([request_entry()])
    assert files(tmp_path / "none").take_journal() == ()


LOSS = Loss("worker-0", 4, LossReason.PROCESS_ENDED, 30.0).entry(10, 45.0)


def test_entries_are_restored() -> None:
    entries = [request_entry(stages={"total": 1.5}), entry_of("clock", details={"to": 1}), LOSS]
    assert restored(saved(entries)) == entries


def test_chunks_are_restored() -> None:
    chunks = [chunk(1, noted(1), exchange(2, 3)), chunk(2, first=3)]
    assert restored_chunks(saved_chunks(chunks)) == chunks


def test_bytes_that_are_neither_are_an_error() -> None:
    whole = saved([entry_of("clock")])
    for data in (b"", b"x", whole[:-3], marshal.dumps([[1]]), marshal.dumps(1)):
        for read in (restored, restored_chunks):
            with pytest.raises(ValueError, match=r"\w"):
                read(data)
