"""Each action of fault rules with each kind of selector, over real sockets."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.log import Log
from minibroker.broker.log.segment import SegmentFiles
from minibroker.broker.process.environment import WORKER
from minibroker.lab.faults.actions import FailAppend, StallAppend
from minibroker.lab.faults.damage import UNKNOWN_TAG, UNKNOWN_VALUE
from minibroker.lab.faults.fault_rule import ActiveRule, FaultRule
from minibroker.lab.faults.register import FaultCounts
from minibroker.lab.observers.faults import StorageFaults
from minibroker.lab.observers.messages import FaultRules
from minibroker.testing import MiniBroker
from minibroker.testing.faults import FaultHandle
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from minibroker_protocol.messages.end_txn import EndTxnRequest
from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from minibroker_protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.schema import Array, Message, Struct
from minibroker_protocol.types import uuid_from_text
from tests.broker.network.raw_client import RawClient, response_in
from tests.broker.process.conftest import MakeEnvironment, make_env

HEARTBEAT = HeartbeatRequest(group_id="faults", member_id="m")
LIST_OFFSETS = ListOffsetsRequest(
    topics=[
        ListOffsetsTopic(
            name="faults", partitions=[ListOffsetsPartition(partition_index=1, timestamp=-1)]
        )
    ]
)
UNCAUSED = int(ErrorCode.POLICY_VIOLATION)
"""An error that these requests do not get otherwise."""


class Case(NamedTuple):
    """A selector that matches a request, and one that does not."""

    matching: dict[str, Any]
    other: dict[str, Any]
    request: Message
    version: int


CASES = {
    "api": Case({"api": "Heartbeat"}, {"api": "Fetch"}, HEARTBEAT, 4),
    "version": Case(
        {"api": "2", "version_min": 7},
        {"api": "2", "version_max": 6},
        LIST_OFFSETS,
        7,
    ),
    "client_id": Case({"client_id": "r*"}, {"client_id": "raw-"}, HEARTBEAT, 4),
    "principal": Case({"principal": "User:ANONYMOUS"}, {"principal": "User:alice"}, HEARTBEAT, 4),
    "connection": Case({"connection": -1}, {"connection": 10**6}, HEARTBEAT, 4),
    "address": Case({"address": "127.0.0.0/8"}, {"address": "127.0.0.2"}, HEARTBEAT, 4),
    "listener": Case({"listener": "PLAINTEXT"}, {"listener": "SSL"}, HEARTBEAT, 4),
    "correlation_id": Case({"correlation_id": 1}, {"correlation_id": 99}, HEARTBEAT, 4),
    "topic": Case({"topic": "fau*"}, {"topic": "fault"}, LIST_OFFSETS, 7),
    "topic_id": Case(
        {"topic_id": ""},
        {"topic_id": "A" * 22},
        MetadataRequest(topics=[MetadataRequestTopic(name=None)]),
        12,
    ),
    "partition": Case({"partition": 1}, {"partition": 0}, LIST_OFFSETS, 7),
    "group": Case({"group": "faults"}, {"group": "other"}, HEARTBEAT, 4),
    "member": Case({"member": "m"}, {"member": "n"}, HEARTBEAT, 4),
    "transactional_id": Case(
        {"transactional_id": "tx"},
        {"transactional_id": "t"},
        EndTxnRequest(transactional_id="tx", producer_id=1),
        3,
    ),
    "resource": Case(
        {"resource": "faults"},
        {"resource": "x"},
        DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=2, resource_name="faults", configuration_keys=["retention.ms"]
                )
            ]
        ),
        4,
    ),
}


@pytest.fixture(scope="module")
def broker() -> Iterator[MiniBroker]:
    """A broker with a topic and a frozen clock."""
    with MiniBroker() as started:
        topic_id = started.control.post("v1", "topics", name="faults", partitions=2)["topic_id"]
        case = CASES["topic_id"]
        case.matching["topic_id"] = topic_id
        case.request.topics[0].topic_id = uuid_from_text(topic_id)  # type: ignore[attr-defined]
        started.freeze()
        yield started
        processes = started.control.get("v1", "health")["processes"]
        assert [each["name"] for each in processes if each["restarts"]] == []


@pytest.fixture
def client(broker: MiniBroker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as connected:
        # A rule that is added before the processor accepts the connection would match it as new.
        connected.ask(HEARTBEAT, 4)
        connected.correlation_id = 0
        yield connected


class Meeting(NamedTuple):
    """A client that sends a request for which a rule fires."""

    broker: MiniBroker
    client: RawClient
    rule: FaultHandle
    request: Message
    version: int

    def receive(self) -> Any:
        return self.client.receive(self.request, self.version)

    def wait_silent(self) -> None:
        """Wait for the rule, and check that nothing was sent until a later request's answer."""
        self.rule.wait()
        with RawClient(self.broker.bootstrap_servers, "witness") as witness:
            witness.ask(MetadataRequest(topics=[]), 12)
        assert not self.client.is_readable()


def codes_in(struct: Struct) -> set[int]:
    """All error codes of a response."""
    found: set[int] = set()
    for item in type(struct).__fields__:
        value = getattr(struct, item.name)
        if item.name == "error_code":
            found.add(value)
        elif isinstance(item.kind, Array):
            found.update(
                *(codes_in(element) for element in value or () if isinstance(element, Struct))
            )
    return found


def has_error(at: Meeting) -> None:
    assert UNCAUSED in codes_in(at.receive())


def is_delayed(at: Meeting) -> None:
    at.wait_silent()
    at.broker.advance(60_000)
    assert UNCAUSED not in codes_in(at.receive())


def is_held(at: Meeting) -> None:
    at.wait_silent()
    while not at.rule.held:
        pass
    assert at.rule.release() == 1
    assert UNCAUSED not in codes_in(at.receive())


def is_overtaken(at: Meeting) -> None:
    at.wait_silent()
    while not at.rule.held:
        pass
    with RawClient(at.broker.bootstrap_servers) as second:
        second.ask(at.request, at.version)
    if at.rule.hits == 1:  # The rule selects a single connection.
        assert at.rule.release() == 1
    assert UNCAUSED not in codes_in(at.receive())


def is_disconnected(at: Meeting) -> None:
    assert at.client.receive_bytes(1) == b""


def is_reset(at: Meeting) -> None:
    with pytest.raises(ConnectionResetError):
        at.client.receive_bytes(1)


def is_cut(at: Meeting) -> None:
    assert len(at.client.receive_frame()) == 7


def is_silent(at: Meeting) -> None:
    at.client.send(at.request, at.version)
    at.wait_silent()


def is_throttled(at: Meeting) -> None:
    assert at.receive().throttle_time_ms == 5000
    at.client.send(at.request, at.version)
    at.wait_silent()
    at.broker.advance(5000)
    at.receive()


def is_slow(at: Meeting) -> None:
    """Two bytes a second: nothing arrives at first, then each second brings two."""
    at.wait_silent()
    at.broker.advance(3000)
    start = at.client.receive_bytes(6)
    assert not at.client.is_readable()
    at.broker.advance(300_000)
    length = int.from_bytes(start[:4], "big")
    response_in(start + at.client.receive_bytes(length - 2), at.request, at.version)


def says_throttled(at: Meeting) -> None:
    assert at.receive().throttle_time_ms == 5000
    at.rule.remove()
    assert at.client.ask(at.request, at.version).throttle_time_ms == 0


def has_other_correlation_id(at: Meeting) -> None:
    assert at.client.receive_frame()[4:8] == (1 ^ 1).to_bytes(4, "big")


def is_too_long(at: Meeting) -> None:
    """The length counts one byte more than follows."""
    start = at.client.receive_bytes(4)
    rest = at.client.receive_bytes(int.from_bytes(start, "big") - 1)
    correct = (len(rest)).to_bytes(4, "big")
    response_in(correct + rest, at.request, at.version)
    assert not at.client.is_readable()


def is_truncated(at: Meeting) -> None:
    short = at.client.receive_frame()
    at.rule.remove()
    at.client.send(at.request, at.version)
    assert len(at.client.receive_frame()) - len(short) == 3


def has_changed_bit(at: Meeting) -> None:
    assert at.client.receive_frame()[4:8] == b"\x01\0\0\x01"


def has_unknown_field(at: Meeting) -> None:
    assert at.receive().unknown_tagged_fields == {UNKNOWN_TAG: UNKNOWN_VALUE}


def is_replaced(at: Meeting) -> None:
    assert at.receive().throttle_time_ms == 77


def is_as_usual(at: Meeting) -> None:
    assert UNCAUSED not in codes_in(at.receive())


ACTIONS: dict[str, tuple[dict[str, Any], Callable[[Meeting], None]]] = {
    "error": ({"error": "POLICY_VIOLATION"}, has_error),
    "error after": ({"error": "44", "at": "after"}, has_error),
    "delay": ({"delay_ms": 60_000}, is_delayed),
    "delay before": ({"delay_ms": 60_000, "at": "before"}, is_delayed),
    "hold": ({}, is_held),
    "hold after": ({"at": "after"}, is_held),
    "reorder": ({}, is_overtaken),
    "reorder before": ({"at": "before"}, is_overtaken),
    "disconnect": ({}, is_disconnected),
    "disconnect after": ({"at": "after"}, is_disconnected),
    "disconnect reset": ({"reset": True}, is_reset),
    "disconnect middle": ({"at": "middle", "bytes": 7}, is_cut),
    "never_answer": ({}, is_silent),
    "never_answer after": ({"at": "after"}, is_silent),
    "throttle": ({"throttle_ms": 5000}, is_throttled),
    "throttle unmuted": ({"throttle_ms": 5000, "mute": False}, says_throttled),
    "slow": ({"bytes_per_s": 2}, is_slow),
    "corrupt correlation_id": ({"part": "correlation_id"}, has_other_correlation_id),
    "corrupt length": ({"part": "length"}, is_too_long),
    "corrupt truncate": ({"part": "truncate", "bytes": 3}, is_truncated),
    "corrupt bit": ({"part": "bit", "bytes": 0}, has_changed_bit),
    "corrupt tagged_field": ({"part": "tagged_field"}, has_unknown_field),
    "replace": ({"response": {"throttle_time_ms": 77}}, is_replaced),
    "patch": ({"fields": {"throttle_time_ms": 77}}, is_replaced),
    "observe": ({}, is_as_usual),
}
APIS = {"topic": "ListOffsets", "partition": "ListOffsets", "topic_id": "Metadata"}
APIS |= {"transactional_id": "EndTxn", "resource": "DescribeConfigs"}


def number_of(broker: MiniBroker, client: RawClient) -> int:
    """The number of a client's connection."""
    client.client_id = "numbered"
    client.ask(MetadataRequest(topics=[]), 12)
    (found,) = (
        each["number"]
        for processor in broker.connections()["processors"]
        for each in processor["connections"]
        if each["client_id"] == "numbered"
    )
    client.client_id, client.correlation_id = "raw", 0
    return int(found)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("selector", CASES)
def test_action_applies_to_selected_requests_only(
    broker: MiniBroker, client: RawClient, selector: str, action: str
) -> None:
    fields, check = ACTIONS[action]
    case = CASES[selector]
    name = action.partition(" ")[0]
    needed = {"api": APIS.get(selector, "Heartbeat")}
    matching = dict(case.matching)
    if selector == "connection":
        matching["connection"] = number_of(broker, client)
    with broker.faults as faults:
        missed = faults.add(name, **{**needed, **case.other, **fields})
        rule = faults.add(name, **{**needed, **matching, **fields})
        client.send(case.request, case.version)
        check(Meeting(broker, client, rule, case.request, case.version))
        assert missed.hits == 0
        missed.remove()


def is_closed(client: RawClient) -> bool:
    try:
        client.send(HEARTBEAT, 4)
        return client.receive_bytes(1) == b""
    except (ConnectionResetError, BrokenPipeError):
        return True


def is_refused(broker: MiniBroker) -> bool:
    """Whether a new connection is reset, at the latest when it is used."""
    try:
        with RawClient(broker.bootstrap_servers) as new:
            return is_closed(new)
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    ("matching", "other"),
    [
        ({"address": "127.0.0.1"}, {"address": "10.0.0.0/8"}),
        ({"listener": "PLAINTEXT"}, {"listener": "SSL"}),
        ({}, {"connection": 10**6}),
    ],
)
def test_new_connections_are_refused(
    broker: MiniBroker, client: RawClient, matching: dict[str, Any], other: dict[str, Any]
) -> None:
    with broker.faults as faults:
        missed = faults.add("refuse", **other)
        refused = faults.add("refuse", **matching, first=1)
        assert is_refused(broker)
        assert client.ask(HEARTBEAT, 4).error_code
        with RawClient(broker.bootstrap_servers) as third:
            assert third.ask(HEARTBEAT, 4).error_code
        assert (refused.hits, missed.hits) == (1, 0)
        missed.remove()


def test_silent_connection_is_never_answered(broker: MiniBroker) -> None:
    with broker.faults as faults:
        rule = faults.add("silent", listener="PLAINTEXT", first=1)
        with RawClient(broker.bootstrap_servers) as new:
            new.send(HEARTBEAT, 4)
            Meeting(broker, new, rule, HEARTBEAT, 4).wait_silent()


@pytest.mark.parametrize(
    "selector", ["connection", "address", "listener", "client_id", "principal"]
)
def test_open_connections_are_closed(broker: MiniBroker, client: RawClient, selector: str) -> None:
    number = number_of(broker, client)
    client.client_id = "closed"
    client.ask(HEARTBEAT, 4)
    matching = {
        "connection": number,
        "address": "127.0.0.1",
        "listener": "PLAINTEXT",
        "client_id": "close*",
        "principal": "User:ANONYMOUS",
    }
    with broker.faults as faults:
        faults.add("close", **{**CASES[selector].other, "first": 10**6}).remove()
        assert client.ask(HEARTBEAT, 4).error_code
        faults.add("close", **{selector: matching[selector]})
        assert is_closed(client)
        with RawClient(broker.bootstrap_servers) as new:
            assert new.ask(HEARTBEAT, 4).error_code


def test_error_of_one_partition_leaves_the_others(broker: MiniBroker, client: RawClient) -> None:
    partitions = [ListOffsetsPartition(partition_index=each, timestamp=-1) for each in (0, 1)]
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="faults", partitions=partitions)])
    with broker.faults as faults:
        faults.add("error", topic="faults", partition=0, error="NOT_LEADER_OR_FOLLOWER")
        answer = client.ask(request, 7)
    (topic,) = answer.topics
    found = {each.partition_index: (each.error_code, each.offset) for each in topic.partitions}
    assert found == {0: (6, -1), 1: (0, 0)}


def test_broker_does_its_work_before_a_late_error_only(
    broker: MiniBroker, client: RawClient
) -> None:
    def create(name: str) -> int:
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        answer = client.ask(CreateTopicsRequest(topics=[topic]), 7)
        return int(answer.topics[0].error_code)

    with broker.faults as faults:
        faults.add("error", api="CreateTopics", topic="early", error="REQUEST_TIMED_OUT", first=1)
        faults.add("error", api="CreateTopics", topic="late", error="7", at="after", first=1)
        assert [create("early"), create("late")] == [7, 7]
        assert [create("early"), create("late")] == [0, 36]  # TOPIC_ALREADY_EXISTS


def test_fetch_sessions_end_while_partitions_are_selected(
    broker: MiniBroker, client: RawClient
) -> None:
    topic_id = uuid_from_text(broker.control.get("v1", "topics", "faults")["topic_id"])
    partition = FetchPartition(partition=0, partition_max_bytes=1000)
    full = FetchRequest(
        topics=[FetchTopic(topic_id=topic_id, partitions=[partition])], session_epoch=0
    )
    session = client.ask(full, 13).session_id
    assert session
    with broker.faults as faults:
        rule = faults.add("error", topic="faults", error="OFFSET_OUT_OF_RANGE", api="Fetch")
        following = FetchRequest(session_id=session, session_epoch=1)
        assert client.ask(following, 13).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert rule.hits == 0
        answer = client.ask(full, 13)
        assert (answer.session_id, answer.responses[0].partitions[0].error_code) == (0, 1)


def test_error_of_produce_without_acknowledgement_closes_the_connection(
    broker: MiniBroker, client: RawClient
) -> None:
    data = [TopicProduceData(name="faults", partition_data=[PartitionProduceData(index=0)])]
    with broker.faults as faults:
        faults.add("error", api="Produce", error="NOT_ENOUGH_REPLICAS")
        client.send(ProduceRequest(acks=0, topic_data=data), 9)
        assert client.receive_bytes(1) == b""


def test_combined_rules_all_act(broker: MiniBroker, client: RawClient) -> None:
    with broker.faults as faults:
        seen = faults.add("observe", api="Heartbeat")
        late = faults.add("delay", api="Heartbeat", delay_ms=1000)
        failed = faults.add("error", api="Heartbeat", error="NOT_COORDINATOR", first=1)
        following = faults.add("error", api="Heartbeat", error="UNKNOWN_MEMBER_ID")
        codes: list[int] = []
        for _ in range(2):
            client.send(HEARTBEAT, 4)
            late.wait(len(codes) + 1)
            broker.advance(1000)
            codes.append(client.receive(HEARTBEAT, 4).error_code)
        assert codes == [16, 25]
        assert [each.hits for each in (seen, late, failed, following)] == [2, 2, 1, 1]


# ----------------------------- Appends fail, are torn and wait where rules say so, and nowhere else


__all__ = ["make_env"]


class At:
    """Logs of one worker whose appends meet rules."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.files = SegmentFiles()
        self.failures: list[int | None] = []
        self.faults = StorageFaults(env, self.files, lambda: None)

    def open(self, topic: str, partition: int) -> Log:
        return Log.open(
            self.env.data_dir,
            topic,
            partition,
            LogConfig(),
            now_ms=0,
            files=self.files,
            on_failure=lambda _, error: self.failures.append(error.errno),
        )

    def set(self, *rules: FaultRule) -> None:
        now = self.env.clock.now()
        active = [ActiveRule(str(slot), rule, slot, now) for slot, rule in enumerate(rules)]
        self.faults.change_rules(FaultRules(1, tuple(active), replaces=True))

    def counts(self, slot: int = 0) -> tuple[int, int]:
        return FaultCounts(self.env.data_dir).read(slot)[:2]


@pytest.fixture
async def at(make_env: MakeEnvironment) -> At:
    return At(make_env(WORKER, 0))


def file_bytes(path: Path) -> int:
    return path.stat().st_size


def append(log: Log) -> ErrorCode:
    try:
        log.append(build_batch([Record(timestamp=1, key=None, value=b"value")]), now_ms=0)
    except LogError as error:
        return error.code
    return ErrorCode.NONE


async def test_only_selected_appends_fail(at: At) -> None:
    logs = {(topic, index): at.open(topic, index) for topic in ("t-1", "u") for index in (0, 1)}
    at.set(FaultRule(FailAppend(errno="EIO"), topic="t*", partition=1, first=1))
    failed = [each for each, log in logs.items() if append(log) is ErrorCode.KAFKA_STORAGE_ERROR]
    assert failed == [("t-1", 1)]
    assert at.failures == [errno.EIO]
    assert append(logs["t-1", 1]) is ErrorCode.NONE
    assert at.counts() == (2, 1)
    assert logs["t-1", 1].log_end_offset == 1


async def test_torn_batch_stays_in_the_file_and_recovery_removes_it(at: At) -> None:
    log = at.open("t", 0)
    append(log)
    at.set(FaultRule(FailAppend(bytes=20)))
    assert append(log) is ErrorCode.KAFKA_STORAGE_ERROR
    path = Path(log.segments.active.path)
    assert file_bytes(path) == log.size + 20
    log.abandon()
    at.set()
    recovered = at.open("t", 0)
    assert (recovered.log_end_offset, file_bytes(path)) == (1, recovered.size)
    assert recovered.truncation is not None
    assert append(recovered) is ErrorCode.NONE
    recovered.abandon()


async def test_torn_batch_is_overwritten_by_the_next_one_and_closed_cleanly(at: At) -> None:
    log = at.open("t", 0)
    at.set(FaultRule(FailAppend(bytes=10_000), first=1))
    assert append(log) is ErrorCode.KAFKA_STORAGE_ERROR
    assert append(log) is ErrorCode.NONE
    at.set(FaultRule(FailAppend(bytes=30)))
    assert append(log) is ErrorCode.KAFKA_STORAGE_ERROR
    at.set()
    log.close(now_ms=0)
    reopened = at.open("t", 0)
    assert reopened.log_end_offset == 1
    assert append(reopened) is ErrorCode.NONE
    reopened.abandon()


async def test_append_waits_and_succeeds(at: At, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    at.set(FaultRule(StallAppend(pause_ms=1500)))
    assert append(at.open("t", 0)) is ErrorCode.NONE
    assert slept == [1.5]


async def test_failure_lasts_as_long_as_its_rule(at: At) -> None:
    for rule in (
        FaultRule(FailAppend(), first=1),
        FaultRule(StallAppend(pause_ms=1)),
        FaultRule(FailAppend(), after_ms=1000),
    ):
        at.set(rule)
        assert not at.faults.fails_always()
    at.set(FaultRule(FailAppend(), until_ms=1000))
    assert at.faults.fails_always()
    at.set()
    assert not at.faults.fails_always()
    assert at.files.write_fault is None


async def test_rule_that_has_no_place_for_its_counts_does_nothing(at: At) -> None:
    at.faults.change_rules(FaultRules(1, (ActiveRule("1", FaultRule(FailAppend())),)))
    assert at.files.write_fault is None


async def test_rules_are_added_and_removed_one_by_one(at: At) -> None:
    log = at.open("t", 0)
    rules = [
        ActiveRule(str(slot), FaultRule(FailAppend(), topic=topic), slot)
        for slot, topic in enumerate(("t", "other", "*"))
    ]
    for number, active in enumerate(rules):
        at.faults.change_rules(FaultRules(number, (active, active)))
    assert append(log) is ErrorCode.KAFKA_STORAGE_ERROR
    assert [at.counts(slot) for slot in range(3)] == [(1, 1), (0, 0), (0, 0)]
    at.faults.change_rules(FaultRules(4, removed=("0", "none")))
    assert append(log) is ErrorCode.KAFKA_STORAGE_ERROR
    assert [at.counts(slot) for slot in range(3)] == [(1, 1), (0, 0), (1, 1)]
    at.faults.change_rules(FaultRules(5, removed=("2",)))
    assert append(log) is ErrorCode.NONE
    at.faults.change_rules(FaultRules(6, removed=("1",)))
    assert at.files.write_fault is None
