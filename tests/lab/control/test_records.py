"""Records and groups over HTTP, at a real broker."""

from __future__ import annotations

import http.client
import json
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from minibroker.client.control import Control, ControlError
from minibroker.client.producer import partition_of
from minibroker.lab.control.records import RECORDS_BODY_MAX_BYTES
from minibroker.testing import MiniBroker

Call = Callable[..., dict[str, Any]]


@pytest.fixture
def call(minibroker: MiniBroker) -> Call:
    """Send a request of the control API and return the answer."""

    def call(method: str, target: str, body: object = None) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(minibroker.control.request(method, target, body))
        return answer

    return call


@pytest.fixture
def topic(minibroker: MiniBroker, minibroker_group: str) -> Iterator[str]:
    """A topic with three partitions."""
    name = minibroker.create_topic(f"{minibroker_group}-t", partitions=3)
    yield name
    minibroker.delete_topic(name)


def values(answer: dict[str, Any]) -> list[str]:
    return [record["value"] for record in answer["records"]]


def produce(call: Call, topic: str, *values: str | None, **fields: object) -> dict[str, Any]:
    records = [{"value": value, **fields} for value in values]
    return call("POST", f"/v1/topics/{topic}/records", {"records": records})


def test_record_is_returned_as_it_was_produced(call: Call, minibroker_topic: str) -> None:
    target = f"/v1/topics/{minibroker_topic}/records"
    headers = [{"key": "trace", "value": "é"}, {"key": "raw", "value_base64": "/w=="}, {"key": "n"}]
    records = [
        {"key": "k", "value": "v", "timestamp_ms": 7, "headers": headers},
        {"key_base64": "AP8=", "value": None, "timestamp_ms": 8},
    ]
    produced = call("POST", target, {"records": records})
    assert produced["records"] == [{"partition": 0, "offset": 0}, {"partition": 0, "offset": 1}]
    first, second = call("GET", target)["records"]
    assert (first["key"], first["value"], first["timestamp_ms"]) == ("k", "v", 7)
    assert [(each["value"], each["value_base64"]) for each in first["headers"]] == [
        ("é", None),
        (None, "/w=="),
        (None, None),
    ]
    assert (second["key"], second["key_base64"]) == (None, "AP8=")
    assert (second["value"], second["value_base64"]) == (None, None)
    encoded = call("GET", f"{target}?encoding=base64&limit=1")["records"][0]
    assert (encoded["value"], encoded["value_base64"]) == (None, b64encode(b"v").decode())


def test_clients_receive_what_was_produced_over_http(
    minibroker: MiniBroker, call: Call, minibroker_topic: str, minibroker_group: str
) -> None:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": minibroker.bootstrap_servers,
            "group.id": minibroker_group,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([minibroker_topic])
    waiting = threading.Timer(0.2, produce, (call, minibroker_topic, "late"))
    waiting.start()
    record = consumer.poll(30)
    assert record is not None
    assert record.value() == b"late"
    consumer.commit(record, asynchronous=False)
    group = call("GET", f"/v1/groups/{minibroker_group}?state=Stable&members=1&lag=0")
    assert group["members"][0]["assignment"][0]["topic"] == minibroker_topic
    consumer.close()
    assert call("GET", f"/v1/groups/{minibroker_group}?members=0")["state"] == "Empty"


def test_key_chooses_the_partition_and_others_take_turns(call: Call, topic: str) -> None:
    produced = produce(call, topic, "a", "b", "c", "d")["records"]
    assert [position["partition"] for position in produced] == [0, 1, 2, 0]
    (keyed,) = produce(call, topic, "e", key="7")["records"]
    assert keyed["partition"] == partition_of(b"7", 3)
    (placed,) = produce(call, topic, "f", partition=1)["records"]
    assert placed["partition"] == 1
    found = call("GET", f"/v1/topics/{topic}/records")["records"]
    assert sorted(record["value"] for record in found) == list("abcdef")
    assert {record["partition"] for record in found if record["value"] in "bf"} == {1}


def test_answer_continues_from_its_next_positions(call: Call, topic: str) -> None:
    produce(call, topic, *map(str, range(10)))
    seen: list[str] = []
    query, more = "limit=3", True
    while more:
        page = call("GET", f"/v1/topics/{topic}/records?{query}")
        assert len(page["records"]) <= 3
        seen += values(page)
        positions = ",".join(f"{index}:{offset}" for index, offset in page["next"].items())
        query, more = f"limit=3&positions={positions}", page["has_more"]
    assert sorted(seen) == list("0123456789")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "abcdef"),
        ("offset=1", "def"),
        ("offset=latest", ""),
        ("last=1", "def"),
        ("partition=1", "be"),
        ("partition=1&offset=1", "e"),
        ("partition=1&offset=9", ""),
        ("positions=0:1,2:0", "cdf"),
    ],
)
def test_query_selects_the_first_records(call: Call, topic: str, query: str, expected: str) -> None:
    produce(call, topic, *"abcdef")
    assert "".join(sorted(values(call("GET", f"/v1/topics/{topic}/records?{query}")))) == expected


def test_deleted_records_are_skipped(
    minibroker: MiniBroker, call: Call, minibroker_topic: str
) -> None:
    produce(call, minibroker_topic, "a", "b", "c")
    admin = AdminClient({"bootstrap.servers": minibroker.bootstrap_servers})
    before = confluent_kafka.TopicPartition(minibroker_topic, 0, 2)
    admin.delete_records([before])[before].result(30)
    assert values(call("GET", f"/v1/topics/{minibroker_topic}/records")) == ["c"]


def test_aborted_records_are_returned_uncommitted_only(
    minibroker: MiniBroker, call: Call, minibroker_topic: str
) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": minibroker.bootstrap_servers, "transactional.id": minibroker_topic}
    )
    producer.init_transactions(30)
    for value, end in (
        ("aborted", producer.abort_transaction),
        ("committed", producer.commit_transaction),
    ):
        producer.begin_transaction()
        producer.produce(minibroker_topic, value)
        producer.flush(30)
        end(30)
    producer.begin_transaction()
    producer.produce(minibroker_topic, "open")
    producer.flush(30)
    target = f"/v1/topics/{minibroker_topic}/records"
    assert values(call("GET", target)) == ["committed"]
    everything = call("GET", f"{target}?isolation=read_uncommitted")
    assert values(everything) == ["aborted", "committed", "open"]
    producer.abort_transaction(30)


def test_wait_ends_with_the_record(call: Call, minibroker_topic: str) -> None:
    threading.Timer(0.1, produce, (call, minibroker_topic, "a", "b")).start()
    assert values(call("GET", f"/v1/topics/{minibroker_topic}/records?wait=2")) == ["a", "b"]


def test_wait_includes_the_creation_of_the_topic(
    minibroker: MiniBroker, call: Call, minibroker_group: str
) -> None:
    threading.Timer(0.1, produce, (call, minibroker_group, "a")).start()
    assert values(call("GET", f"/v1/topics/{minibroker_group}/records?wait=1")) == ["a"]
    minibroker.delete_topic(minibroker_group)


@pytest.mark.parametrize("name", ["a/b", "..", "a b", "x" * 250])
def test_topic_that_cannot_exist_is_not_awaited(call: Call, name: str) -> None:
    with pytest.raises(ControlError, match=r"INVALID_TOPIC_EXCEPTION: Topic name .+ is invalid: "):
        call("GET", f"/v1/topics/{quote(name, safe='')}/records?wait=1&timeout_ms=30000")


def test_wait_goes_by_real_time_also_on_a_frozen_clock() -> None:
    with MiniBroker() as broker:
        broker.freeze()
        with pytest.raises(ControlError) as late:
            broker.control.request("GET", "/v1/topics/t/records?wait=1&timeout_ms=50")
    assert late.value.status == 408


@pytest.mark.parametrize(
    ("target", "status", "expected"),
    [
        ("/v1/topics/{t}/records?wait=3&timeout_ms=20", 408, "there are 2. The last: 0@0 'a', 0@1"),
        ("/v1/topics/none/records?wait=1&timeout_ms=20", 408, "There is no topic with this name"),
        ("/v1/topics/{t}/records?wait=1&offset=5&timeout_ms=20", 408, "does the application use"),
        ("/v1/topics/none/records", 404, "there is no topic 'none'"),
        ("/v1/topics/a%2Fb/records", 404, "there is no topic 'a/b'"),
        ("/v1/topics/../records", 404, "there is no topic '..'"),
        ("/v1/topics/{t}/records?limit=10001", 400, "must be a number from 0 to 10000"),
        ("/v1/topics/{t}/records?limit=1&wait=2", 400, "is less than wait"),
        ("/v1/topics/{t}/records?timeout_ms=600001", 400, "must be a number from 0 to 600000"),
        ("/v1/topics/{t}/records?positions=0", 400, "must be partition:offset"),
        ("/v1/topics/{t}/records?positions=7:0", 400, "has partitions 0 to 0, not 7"),
        ("/v1/topics/{t}/records?partition=7", 400, "has partitions 0 to 0, not 7"),
        ("/v1/topics/{t}/records?last=1&offset=2", 400, "only one of positions, last and offset"),
        ("/v1/topics/{t}/records?positions=0:1&partition=0", 400, "can't be given with positions"),
        ("/v1/topics/{t}/records?isolation=comitted", 400, "did you mean 'read_committed'?"),
        ("/v1/topics/{t}/records?encoding=hex", 400, "must be one of text, base64"),
        ("/v1/groups/none?state=stable", 400, "did you mean 'Stable'?"),
        ("/v1/groups/none?members=1&timeout_ms=20", 408, "members 1, and there is no such group"),
    ],
)
def test_rejected_query_says_what_to_change(
    call: Call, minibroker_topic: str, target: str, status: int, expected: str
) -> None:
    produce(call, minibroker_topic, "a", "b")
    with pytest.raises(ControlError) as rejected:
        call("GET", target.format(t=minibroker_topic))
    assert expected in rejected.value.text
    assert rejected.value.status == status


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"value_base64": "%"}, "records.0.value_base64: is not base64"),
        ({"value": "a", "value_base64": "YQ=="}, "records.0.value: is given as text and as base64"),
        ({"value": "\ud800"}, "records.0.value: is not valid Unicode"),
        ({"partition": 1}, "records.0.partition: must be below 1"),
        ({"valeu": "a"}, "did you mean 'value'?"),
        ({"headers": [{"key": "h", "value_base64": "!"}]}, "records.0.headers_base64: is not"),
    ],
)
def test_invalid_record_is_rejected_with_its_place(
    call: Call, minibroker_topic: str, record: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ControlError, match="INVALID_REQUEST") as rejected:
        call("POST", f"/v1/topics/{minibroker_topic}/records", {"records": [record]})
    assert expected in rejected.value.text
    assert values(call("GET", f"/v1/topics/{minibroker_topic}/records")) == []


def test_record_that_the_log_rejects_says_how_many_were_produced(
    minibroker: MiniBroker, call: Call, minibroker_group: str
) -> None:
    configs = {"cleanup.policy": "compact"}
    topic = minibroker.create_topic(f"{minibroker_group}-t", 2, configs)
    records = [{"key": "a", "partition": 0}, {"value": "x", "partition": 1}]
    with pytest.raises(ControlError, match="INVALID_RECORD") as rejected:
        call("POST", f"/v1/topics/{topic}/records", {"records": records})
    assert "1 of 2 records were produced before" in rejected.value.text
    minibroker.delete_topic(topic)


def test_internal_topic_is_not_written(call: Call) -> None:
    with pytest.raises(ControlError, match="only the broker may write"):
        produce(call, "__consumer_offsets", "a")


def test_topic_is_created_only_if_clients_may_do_so(call: Call) -> None:
    with pytest.raises(ControlError, match="INVALID_TOPIC_EXCEPTION"):
        produce(call, "a%2Fb", "x")
    body = {"records": [{"value": "x"}]}
    with (
        MiniBroker(settings={"auto.create.topics.enable": False}) as broker,
        pytest.raises(ControlError) as rejected,
    ):
        broker.control.request("POST", "/v1/topics/none/records", body)
    assert rejected.value.status == 404


def test_large_body_is_accepted_and_a_larger_one_rejected(
    call: Call, minibroker_topic: str
) -> None:
    produce(call, minibroker_topic, *["x" * 1000] * 3000)
    with pytest.raises(ControlError) as rejected:
        produce(call, minibroker_topic, "x" * RECORDS_BODY_MAX_BYTES)
    assert rejected.value.status == 413
    page = call("GET", f"/v1/topics/{minibroker_topic}/records?limit=10000")
    assert len(page["records"]) == 3000


@pytest.mark.parametrize("group_id", ["a/b", "a?b=c", "..", ".", "a%2Fb", "é x#y", ""])
def test_group_ids_may_contain_anything(
    minibroker: MiniBroker, minibroker_topic: str, group_id: str
) -> None:
    """Through the path, or through the query for what clients remove from paths."""
    control = Control(minibroker.control_url)
    quoted = quote(group_id, safe="")
    for target in (f"/v1/groups/{quoted}", f"/v1/groups/?group_id={quoted}"):
        with pytest.raises(ControlError) as missing:
            control.request("GET", target)
        assert missing.value.code == "GROUP_ID_NOT_FOUND"
        assert repr(group_id) in missing.value.text
    control.close()


def test_wait_ends_when_the_client_disconnects(minibroker: MiniBroker) -> None:
    address = minibroker.control_url.partition("//")[2]
    for _ in range(3):
        connection = http.client.HTTPConnection(address)
        connection.request("GET", "/v1/topics/none/records?wait=1&timeout_ms=100")
        connection.close()
    assert minibroker.control.get("v1", "health")["ready"]
