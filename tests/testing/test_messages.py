"""Messages are produced, read and awaited, at a broker of ours and at any other Kafka."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, cast

import confluent_kafka
import pytest
import trio

from minibroker.testing import MiniBroker, TooManyMessages, TopicMessage, WaitTimedOut, messages
from minibroker.testing.external import ExternalKafka
from minibroker.testing.messages import MessageHelpers, message_of


@pytest.fixture(params=["broker", "external"])
def kafka(request: pytest.FixtureRequest, minibroker: MiniBroker) -> MessageHelpers:
    """The same broker, over its control API and over Kafka's protocol."""
    if request.param == "broker":
        return minibroker
    return ExternalKafka(minibroker.bootstrap_servers)


@pytest.fixture
def topic(minibroker: MiniBroker, minibroker_group: str) -> Iterator[str]:
    """A topic with three partitions."""
    name = minibroker.create_topic(f"{minibroker_group}-t", partitions=3)
    yield name
    minibroker.delete_topic(name)


def test_messages_are_read_as_they_were_produced(kafka: MessageHelpers, topic: str) -> None:
    given = TopicMessage(b"\xff", b"k", (("h", b"1"), ("n", None)), timestamp_ms=7)
    produced = kafka.produce(
        topic, [given, "text", ("key", {"id": 1}), None, TopicMessage(b"p2", partition=2)]
    )
    assert produced[1].partition == 0
    assert produced[4].partition == 2
    found = kafka.messages(topic)
    assert {message[:5] for message in found} == {message[:5] for message in produced}
    assert found[0] == produced[0]
    assert kafka.wait_for(topic, where=lambda message: message.key == b"key")[0].json() == {"id": 1}
    assert kafka.wait_for(topic, where=lambda message: message.text == "text")


def test_last_messages_of_each_partition(kafka: MessageHelpers, topic: str) -> None:
    kafka.produce(topic, list("abcdef"))
    assert sorted(message.text for message in kafka.messages(topic, last=1)) == ["d", "e", "f"]


def test_aborted_messages_are_not_read(
    kafka: MessageHelpers, minibroker: MiniBroker, minibroker_topic: str
) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": minibroker.bootstrap_servers, "transactional.id": minibroker_topic}
    )
    producer.init_transactions(30)
    ends = [producer.abort_transaction, producer.commit_transaction]
    for number, end in enumerate([*ends, *ends]):
        producer.begin_transaction()
        producer.produce(minibroker_topic, str(number))
        producer.flush(30)
        end(30)
    producer.begin_transaction()
    producer.produce(minibroker_topic, "open")
    producer.flush(30)
    assert [message.text for message in kafka.messages(minibroker_topic)] == ["1", "3"]
    producer.abort_transaction(30)


def test_wait_for_returns_the_first_messages(kafka: MessageHelpers, minibroker_topic: str) -> None:
    timer = threading.Timer(0.1, kafka.produce, (minibroker_topic, ["a", "b", "c"]))
    timer.start()
    assert [message.text for message in kafka.wait_for(minibroker_topic, 2)] == ["a", "b"]
    timer.join()


def test_wait_for_includes_the_creation_of_the_topic(
    kafka: MessageHelpers, minibroker: MiniBroker, minibroker_group: str
) -> None:
    threading.Timer(0.1, minibroker.produce, (minibroker_group, ["a"])).start()
    assert kafka.wait_for(minibroker_group)[0].text == "a"
    minibroker.delete_topic(minibroker_group)


def test_missing_messages_are_described(kafka: MessageHelpers, minibroker_topic: str) -> None:
    kafka.produce(minibroker_topic, [("k", "a"), "b"])
    with pytest.raises(WaitTimedOut) as missing:
        kafka.wait_for(minibroker_topic, 3, timeout_s=0.05)
    assert str(missing.value) == (
        f"3 messages of topic {minibroker_topic!r} were awaited for 0.05 s, and there are 2. "
        "The last (partition@offset, key, value):\n  0@0 'k': 'a'\n  0@1 'b'"
    )
    with pytest.raises(WaitTimedOut, match="0 of 2 match"):
        kafka.wait_for(minibroker_topic, where=lambda message: message.text == "c", timeout_s=0.05)
    with pytest.raises(WaitTimedOut, match=r"there are none\. Does the application"):
        kafka.wait_for("none", timeout_s=0.05)


def test_group_is_awaited(
    kafka: MessageHelpers, minibroker: MiniBroker, minibroker_topic: str, minibroker_group: str
) -> None:
    kafka.produce(minibroker_topic, ["a"])
    with pytest.raises(WaitTimedOut, match=r"to have state Stable, and"):
        kafka.wait_for_group(minibroker_group, timeout_s=0.05)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": minibroker.bootstrap_servers,
            "group.id": minibroker_group,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([minibroker_topic])
    record = consumer.poll(30)
    assert record is not None
    assert len(kafka.wait_for_group(minibroker_group, members=1)["members"]) == 1
    with pytest.raises(WaitTimedOut, match=r"to have lag 0, and .*members 1"):
        kafka.wait_for_group(minibroker_group, lag=0, timeout_s=0.05)
    consumer.commit(record, asynchronous=False)
    assert kafka.wait_for_group(minibroker_group, "Stable", lag=0)["state"] == "Stable"
    consumer.close()
    assert kafka.wait_for_group(minibroker_group, "Empty")["members"] == []


def test_many_messages_take_several_requests(
    kafka: MessageHelpers, minibroker_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "PAGE", 10)
    assert len(kafka.produce(minibroker_topic, [str(number) for number in range(25)])) == 25
    found = [message.text for message in kafka.messages(minibroker_topic)]
    assert found == [str(number) for number in range(25)]
    assert len(kafka.wait_for(minibroker_topic, 25)) == 25


def test_too_many_messages_are_an_error(
    minibroker: MiniBroker, minibroker_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "PAGE", 2)
    monkeypatch.setattr(messages, "MESSAGES_MAX", 3)
    minibroker.produce(minibroker_topic, list("abcdef"))
    with pytest.raises(TooManyMessages, match="read the end of it, with last=1000"):
        minibroker.messages(minibroker_topic)
    with pytest.raises(TooManyMessages):
        minibroker.wait_for(minibroker_topic, where=lambda _: False)


def test_wrong_messages_are_explained(minibroker: MiniBroker) -> None:
    with pytest.raises(TypeError, match=r"messages must be a list: produce\('t', \['a'\]\)"):
        minibroker.produce("t", "a")
    with pytest.raises(TypeError, match="must be a key and a value, not 3 items"):
        message_of(cast("Any", ("a", "b", "c")))
    with pytest.raises(TypeError, match="must be bytes, text, JSON or None, not int"):
        message_of((1, "b"))


async def produced_and_awaited() -> list[str]:
    async with MiniBroker(seed={"topics": {"t": {"records": ["a"]}}}) as broker:
        await broker.produce("t", ["b"])
        found = await broker.wait_for("t", 2)
        assert await broker.messages("t") == found
        with pytest.raises(WaitTimedOut):
            await broker.wait_for_group("g", timeout_s=0.01)
        await broker.seed({"topics": {"u": {"records": ["c"]}}})
        return [message.text for message in [*found, *await broker.messages("u")]]


def test_asyncio_and_trio_await_the_same_helpers() -> None:
    assert asyncio.run(produced_and_awaited()) == ["a", "b", "c"]
    assert trio.run(produced_and_awaited) == ["a", "b", "c"]
