"""For every API, version and action: a rule counts a hit if it changes the response or its time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.apis.base import CloseConnection
from minibroker.broker.network.interception import InterceptorDisconnect
from minibroker.lab.faults.actions import (
    ACTIONS,
    Advance,
    Corrupt,
    Delay,
    Disconnect,
    Error,
    Hold,
    Kill,
    NeverAnswer,
    Patch,
    Pause,
    Reorder,
    Replace,
    Slow,
    ThrottleResponse,
)
from minibroker.lab.faults.execution import FaultExecutor
from minibroker.lab.faults.fault_rule import FaultHold, FaultRule, check_rule
from minibroker.lab.faults.matching import Candidate
from minibroker.lab.faults.message_fields import copied
from minibroker.lab.faults.register import FaultRegister
from minibroker.lab.faults.rulebook import Firing
from minibroker.lab.schema import InvalidJson
from minibroker_protocol import registry
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import FetchResponse
from minibroker_protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from minibroker_protocol.messages.produce import ProduceRequest, ProduceResponse
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Message
from minibroker_protocol.wire import RequestHeader, encode_response_header
from tests.lab.faults.messages import SERVED, numbered, request_of, served_versions
from tests.lab.faults.test_execution import Client

THROTTLE_MS: Final = 5000
RECORDS: Final = bytes(70)

RULES: Final = {
    "error": FaultRule(Error(error="POLICY_VIOLATION")),
    "error after": FaultRule(Error(error="POLICY_VIOLATION", at="after")),
    "whole error": FaultRule(Error(error="POLICY_VIOLATION", whole=True)),
    "delay": FaultRule(Delay(delay_ms=1000)),
    "delay before": FaultRule(Delay(delay_ms=1000, at="before")),
    "hold": FaultRule(Hold()),
    "hold after": FaultRule(Hold(at="after")),
    "reorder": FaultRule(Reorder()),
    "disconnect": FaultRule(Disconnect()),
    "disconnect after": FaultRule(Disconnect(at="after")),
    "disconnect middle": FaultRule(Disconnect(at="middle")),
    "never_answer": FaultRule(NeverAnswer()),
    "never_answer after": FaultRule(NeverAnswer(at="after")),
    "throttle": FaultRule(ThrottleResponse(throttle_ms=THROTTLE_MS)),
    "throttle unmuted": FaultRule(ThrottleResponse(throttle_ms=THROTTLE_MS, mute=False)),
    "slow": FaultRule(Slow(bytes_per_s=1)),
    "corrupt crc": FaultRule(Corrupt(part="crc")),
    "corrupt bit": FaultRule(Corrupt(part="bit")),
    "corrupt length": FaultRule(Corrupt(part="length")),
    "corrupt correlation_id": FaultRule(Corrupt(part="correlation_id")),
    "corrupt tagged_field": FaultRule(Corrupt(part="tagged_field")),
    "corrupt truncate": FaultRule(Corrupt(part="truncate")),
    "replace": FaultRule(Replace(response={"throttle_time_ms": 77})),
    "replace with the same": FaultRule(Replace(response={"throttle_time_ms": 0})),
    "patch": FaultRule(Patch(fields={"throttle_time_ms": 77})),
    "patch with the same": FaultRule(Patch(fields={"throttle_time_ms": 0})),
    "replace before": FaultRule(Replace(response={}, at="before")),
    "kill": FaultRule(Kill(process="worker-0")),
    "pause after": FaultRule(Pause(process="worker-0", pause_ms=1, at="after")),
    "advance": FaultRule(Advance(advance_ms=1)),
}


class Outcome:
    """What a client sees of one request."""

    def __init__(self) -> None:
        self.frame: bytes | None = None
        self.end: str | None = None
        self.seconds = 0.0
        self.waited: list[str] = []
        self.executed = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outcome) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class Conversation:
    """A request that is executed with the rules of a register; it implements `FaultDecisions`."""

    def __init__(self, *, delays_throttled: bool = False) -> None:
        self.register = FaultRegister(SERVED, trio.current_time, trio.sleep)
        self.executor = FaultExecutor(self, delays_throttled=delays_throttled)
        self.outcome = Outcome()

    def add(self, *rules: FaultRule) -> None:
        for rule in rules:
            self.executor.change_rules([self.register.add(rule).active])

    @property
    def hits(self) -> list[int]:
        return [each.hits for each in self.register.views()]

    async def decide(self, candidates: Sequence[Candidate]) -> Sequence[Firing]:
        return self.register.decide(candidates)

    async def hold(self, rule_id: str, releases: int, what: FaultHold) -> None:
        del rule_id, releases, what
        self.outcome.waited.append("hold")

    async def act(self, rule_id: str) -> None:
        del rule_id
        self.outcome.waited.append("act")

    async def meet(
        self, key: ApiKey, version: int, request: Message, response: Message | None
    ) -> Outcome:
        """Let the rules act on a request with this response."""
        outcome = self.outcome = Outcome()
        header, client = RequestHeader(key, version, 1, "client"), Client()

        async def run() -> Message | None:
            outcome.executed += 1
            return None if response is None else copied(response)

        began = trio.current_time()
        try:
            matches = self.executor.match(client.attributes(), header, request, lambda _: None)
            made, faults = await self.executor.execute(client, header, request, matches, run)
            if made is not None:
                body = encode_response_header(key, version, 1) + encode(made, version)
                frame = len(body).to_bytes(4, "big") + body
                await client.send(frame) if faults is None else await faults.send(frame)
            if faults is not None:
                await faults.mute()
        except (InterceptorDisconnect, CloseConnection) as error:
            outcome.end = type(error).__name__
        outcome.frame = b"".join(data for _, data in client.sent) or None
        outcome.seconds = round(trio.current_time() - began, 3)
        return outcome


def response_of(key: ApiKey, version: int) -> Message:
    """A response with elements and records, and neither an error nor a throttle time."""
    response = numbered(registry.schema(key).response, version)
    assert isinstance(response, Message)
    if isinstance(response, FetchResponse):
        for topic in response.responses:
            for partition in topic.partitions:
                partition.records = RECORDS
    return response


def accepted(rule: FaultRule) -> bool:
    try:
        Conversation().add(rule)
    except InvalidJson:
        return False
    return True


def test_every_action_on_requests_has_a_case() -> None:
    cases = {rule.action.name for rule in RULES.values()}
    of_requests = {name for name, kind in ACTIONS.items() if kind.matches == "requests"}
    assert cases == of_requests - {"observe"}
    assert cases >= {name for name, kind in ACTIONS.items() if kind.acts_on_broker}


@pytest.mark.parametrize("case", RULES)
async def test_rule_counts_a_hit_if_the_client_could_tell(
    case: str, autojump_clock: MockClock
) -> None:
    rule = RULES[case]
    effective = dict.fromkeys(served_versions(), False)
    for key, version in effective:
        response = response_of(key, version)
        request: Any = request_of(key, version)
        if key == ApiKey.PRODUCE:
            request.acks = 1
        plain = await Conversation().meet(key, version, copied(request), response)
        conversation = Conversation()
        try:
            conversation.add(
                rule._replace(api=key.name if isinstance(rule.action, Replace | Patch) else None)
            )
        except InvalidJson:
            assert isinstance(rule.action, Replace | Patch)
            assert not registry.throttle_versions(key).has(SERVED[key][1])
            continue
        outcome = await conversation.meet(key, version, copied(request), response)
        assert conversation.hits == [outcome != plain], (key.name, version)
        view = conversation.register.view("1")
        assert view.matches == view.hits
        effective[key, version] = outcome != plain
    if case.endswith("with the same"):
        assert not any(effective.values())
        return
    assert any(effective.values())
    for served, (low, high) in SERVED.items():
        key = ApiKey(served)
        chosen = rule._replace(api=key.name)
        versions = range(low, high + 1)
        found = [effective[key, version] for version in versions]
        assert accepted(chosen) == any(found), key.name
        for version, has_effect in zip(versions, found, strict=True):
            one = chosen._replace(version_min=version, version_max=version)
            assert accepted(one) == has_effect, (key.name, version)


@pytest.mark.parametrize("case", sorted(RULES.keys() - {"corrupt crc"}))
async def test_request_without_acknowledgement_has_no_response_to_change(
    case: str, autojump_clock: MockClock
) -> None:
    request = ProduceRequest(acks=0)
    plain = await Conversation().meet(ApiKey.PRODUCE, 9, copied(request), None)
    conversation = Conversation()
    conversation.add(RULES[case]._replace(api="Produce"))
    outcome = await conversation.meet(ApiKey.PRODUCE, 9, copied(request), ProduceResponse())
    assert conversation.hits == [outcome != plain]


@pytest.mark.parametrize("at", ["before", "after", None])
async def test_error_needs_something_that_can_fail(at: Any) -> None:
    conversation = Conversation()
    conversation.add(FaultRule(Error(error="POLICY_VIOLATION", at=at), api="Metadata", first=1))
    empty = MetadataRequest(topics=[])
    await conversation.meet(ApiKey.METADATA, 9, copied(empty), MetadataResponse())
    assert conversation.register.view("1").matches == 0
    everything = MetadataRequest(topics=None)
    await conversation.meet(ApiKey.METADATA, 9, copied(everything), MetadataResponse())
    assert conversation.hits == [0]
    topics = [MetadataResponseTopic(name="t")]
    response = MetadataResponse(topics=topics)
    await conversation.meet(ApiKey.METADATA, 9, copied(everything), response)
    assert conversation.hits == [1]


async def test_error_that_the_response_has_anyway_is_no_hit() -> None:
    conversation = Conversation()
    conversation.add(FaultRule(Error(error="UNKNOWN_MEMBER_ID", at="after"), api="Heartbeat"))
    response: Any = response_of(ApiKey.HEARTBEAT, 4)
    response.error_code = int(ErrorCode.UNKNOWN_MEMBER_ID)
    request = request_of(ApiKey.HEARTBEAT, 4)
    assert isinstance(request, Message)
    await conversation.meet(ApiKey.HEARTBEAT, 4, request, response)
    assert conversation.hits == [0]


@pytest.mark.parametrize(
    ("cases", "hits"),
    [
        (("disconnect", "delay before", "throttle", "slow", "delay"), [1, 0, 0, 0, 0]),
        (("delay before", "disconnect", "throttle"), [1, 1, 0]),
        (("throttle", "slow", "delay", "disconnect after", "hold after"), [0, 0, 1, 1, 0]),
        (("throttle", "never_answer after"), [0, 1]),
        (("error", "disconnect", "corrupt bit"), [1, 0, 0]),
        (("error after", "error", "disconnect"), [1, 0, 0]),
        (("corrupt tagged_field", "error", "disconnect after"), [1, 0, 0]),
        (("disconnect after", "error"), [1, 0]),
        (("replace with the same", "error after"), [0, 1]),
        (("replace", "throttle"), [1, 1]),
        (("replace before", "error"), [1, 0]),
        (("delay", "disconnect middle", "replace"), [1, 1, 0]),
    ],
)
async def test_rules_act_in_their_order(
    cases: tuple[str, ...], hits: list[int], autojump_clock: MockClock
) -> None:
    key, version = ApiKey.HEARTBEAT, 4
    conversation = Conversation()
    conversation.add(*(RULES[case]._replace(api="Heartbeat") for case in cases))
    request = request_of(key, version)
    assert isinstance(request, Message)
    await conversation.meet(key, version, request, response_of(key, version))
    assert conversation.hits == hits


@pytest.mark.parametrize(("mute", "seconds"), [(None, 5), (False, 0)])
async def test_throttled_response_is_late_as_before_kafka_2_0(
    mute: bool | None, seconds: float, autojump_clock: MockClock
) -> None:
    conversation = Conversation(delays_throttled=True)
    conversation.add(FaultRule(ThrottleResponse(throttle_ms=THROTTLE_MS, mute=mute)))
    request = request_of(ApiKey.HEARTBEAT, 4)
    assert isinstance(request, Message)
    sent: list[float] = []

    class NotedClient(Client):
        async def send(self, data: bytes) -> None:
            sent.append(trio.current_time())

    began, client = trio.current_time(), NotedClient()
    header = RequestHeader(ApiKey.HEARTBEAT, 4, 1, "client")

    async def run() -> Any:
        return response_of(ApiKey.HEARTBEAT, 4)

    matches = conversation.executor.match(client.attributes(), header, request, lambda _: None)
    response, faults = await conversation.executor.execute(client, header, request, matches, run)
    assert response.throttle_time_ms == THROTTLE_MS
    assert faults is not None
    await faults.send(b"\0\0\0\1a")
    await faults.mute()
    assert [round(each - began, 3) for each in sent] == [seconds]
    assert round(trio.current_time() - began, 3) == seconds


# What only the response names ---------------------------------------------------------------------


def metadata() -> MetadataResponse:
    """Two topics of two partitions, led by broker 1."""
    return MetadataResponse(
        topics=[
            MetadataResponseTopic(
                name=name,
                partitions=[
                    MetadataResponsePartition(partition_index=index, leader_id=1, leader_epoch=5)
                    for index in (0, 1)
                ],
            )
            for name in ("a", "b")
        ]
    )


async def changes(rule: FaultRule, request: MetadataRequest, version: int = 9) -> dict[str, Any]:
    """What a rule changes in the response to Metadata: each field by its place."""
    conversation = Conversation()
    conversation.add(rule)
    outcome = await conversation.meet(ApiKey.METADATA, version, request, metadata())
    assert outcome.frame is not None
    start = len(encode_response_header(ApiKey.METADATA, version, 1)) + 4
    sent = decode(MetadataResponse, version, outcome.frame[start:])
    found: dict[str, Any] = {}
    for topic, plain in zip(sent.topics, metadata().topics, strict=True):
        if topic.error_code:
            found[f"{topic.name}.error"] = ErrorCode(topic.error_code).name
        for one, other in zip(topic.partitions, plain.partitions, strict=True):
            where = f"{topic.name}-{one.partition_index}"
            if one.error_code:
                found[f"{where}.error"] = ErrorCode(one.error_code).name
            if one.leader_id != other.leader_id:
                found[f"{where}.leader"] = one.leader_id
    assert conversation.hits == [bool(found)]
    return found


ALL_TOPICS: Final = MetadataRequest(topics=None)
BOTH_TOPICS: Final = MetadataRequest(
    topics=[MetadataRequestTopic(name="a"), MetadataRequestTopic(name="b")]
)
NO_LEADER: Final = FaultRule(Error(error="LEADER_NOT_AVAILABLE"), api="Metadata")


@pytest.mark.parametrize("request_", [ALL_TOPICS, BOTH_TOPICS])
@pytest.mark.parametrize(
    ("selectors", "failed"),
    [
        ({"topic": "b", "partition": 1}, ["b-1"]),
        ({"partition": 0}, ["a-0", "b-0"]),
        ({"topic": "c", "partition": 0}, []),
        ({"topic": "a", "partition": 7}, []),
    ],
)
async def test_error_of_a_partition_is_put_into_metadata(
    request_: MetadataRequest, selectors: dict[str, Any], failed: list[str]
) -> None:
    found = await changes(NO_LEADER._replace(**selectors), copied(request_))
    assert found == {f"{each}.error": "LEADER_NOT_AVAILABLE" for each in failed}


async def test_topic_fails_also_if_the_request_names_none() -> None:
    conversation = Conversation()
    conversation.add(NO_LEADER._replace(topic="a"))
    outcome = await conversation.meet(ApiKey.METADATA, 9, copied(ALL_TOPICS), metadata())
    assert conversation.hits == [1]
    expected = metadata()
    expected.topics[0].error_code = int(ErrorCode.LEADER_NOT_AVAILABLE)
    assert outcome.frame is not None
    assert outcome.frame.endswith(encode(expected, 9))


async def test_patch_changes_the_matching_elements_only() -> None:
    fields = {"leader_id": -1, "error_code": 5}
    rule = FaultRule(Patch(fields=fields), api="Metadata", topic="a", partition=1)
    for request in (ALL_TOPICS, BOTH_TOPICS):
        assert await changes(rule, copied(request)) == {
            "a-1.error": "LEADER_NOT_AVAILABLE",
            "a-1.leader": -1,
        }
    everywhere = FaultRule(Patch(fields={"leader_id": 7}), api="Metadata")
    assert await changes(everywhere, copied(ALL_TOPICS)) == dict.fromkeys(
        ("a-0.leader", "a-1.leader", "b-0.leader", "b-1.leader"), 7
    )


async def test_entity_of_a_response_has_the_error_of_the_first_rule() -> None:
    conversation = Conversation()
    conversation.add(
        NO_LEADER._replace(partition=0),
        FaultRule(Error(error="UNKNOWN_SERVER_ERROR"), api="Metadata", partition=0, topic="a"),
        FaultRule(Error(error="UNKNOWN_SERVER_ERROR"), api="Metadata", partition=1, topic="a"),
    )
    await conversation.meet(ApiKey.METADATA, 9, copied(ALL_TOPICS), metadata())
    assert conversation.hits == [1, 0, 1]


@pytest.mark.parametrize(
    ("rule", "path"),
    [
        (FaultRule(Patch(fields={"leader": 1}), api="Metadata"), "fields.leader"),
        (FaultRule(Patch(fields={"leader_id": "x"}), api="Metadata"), "fields.leader_id"),
        (FaultRule(Patch(fields={"leader_id": 1})), "api"),
        (
            FaultRule(Patch(fields={"leader_epoch": 1}), api="Metadata", version_max=6),
            "fields.leader_epoch",
        ),
        (FaultRule(Patch(fields={"error_code": 1}), api="Metadata", group="g"), "group"),
        (FaultRule(Delay(delay_ms=1), api="Metadata", partition=0), "partition"),
    ],
)
def test_patch_that_can_change_nothing_is_rejected(rule: FaultRule, path: str) -> None:
    with pytest.raises(InvalidJson) as raised:
        check_rule(rule, SERVED)
    assert [each.path for each in raised.value.faults] == [path]
