"""The view of topics: their sizes, partitions and messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from system_tests.console.conftest import Limited, OpenPage
from system_tests.console.test_page import PHONE, SCRIPT
from system_tests.console.test_rules import call
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.browser import Browser
from system_tests.harness.control import ask
from system_tests.harness.waiting import PATIENCE_S

pytestmark = pytest.mark.minibroker


def produce(broker: RunningBroker, topic: str, *records: dict[str, Any]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for record in records:
        producer.produce(topic, partition=0, **record)
    assert producer.flush(PATIENCE_S) == 0


def test_topics_are_listed_filtered_and_described(limited: Limited, open_page: OpenPage) -> None:
    broker = limited()
    for name, partitions in (("orders", 2), ("payments", 1)):
        body = {"name": name, "partitions": partitions, "configs": {"retention.ms": "60000"}}
        ask(broker, "POST", "/v1/topics", body)
    produce(broker, "orders", {"value": b"x"}, {"value": b"y"})
    page = open_page(broker)
    page.find("#tab-connections").send_keys(Keys.END, Keys.ARROW_LEFT)
    page.find("#tab-topics").click()
    row = "#topics tbody tr"
    page.wait(lambda: page.count(row) == 2, "the topics to be drawn")
    orders, payments = page.texts(row)
    assert orders.startswith("orders 2 2 ")
    assert orders.endswith(" B")
    assert payments == "payments 1 0 0 B"
    page.find("#topics-filter [name=name]").send_keys("PAY")
    page.wait(lambda: page.count(row) == 1, "only one to match")
    page.find("#topics-filter [name=name]").send_keys("\u0001x")
    page.wait(lambda: "No topic matches" in page.text("#topics"), "that to be said")
    page.find("#topics-filter [name=name]").clear()
    page.find("#topics-filter [name=internal]").click()
    page.wait(lambda: "__consumer_offsets 50" in page.text("#topics"), "internal topics")
    page.find(f"{row} button").send_keys(Keys.ENTER)
    page.wait(lambda: page.count("#topic tbody tr") == 2, "the partitions")
    partition, start, end, *_ = page.texts("#topic tbody tr:first-child > *")
    assert [partition, start, end] == ["0", "0", "2"]
    assert "retention.ms=60000" in page.text("#topic")
    assert "partition 2" not in page.text("#produce [name=partition]")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_partitions([NewPartitions("orders", 3)])["orders"].result(PATIENCE_S)
    page.wait(lambda: "partition 2" in page.text("#produce [name=partition]"), "the new one")
    assert page.text("#messages-filter [name=partition]").endswith("partition 2")


def test_topics_are_filtered_by_name_and_kind(rules: Browser) -> None:
    topics = [{"name": name, "internal": name.startswith("_")} for name in ("Ab", "b", "_b", "c")]
    for wanted, expected in (
        ({}, ["Ab", "b", "c"]),
        ({"name": " B "}, ["Ab", "b"]),
        ({"name": "b", "internal": True}, ["Ab", "b", "_b"]),
    ):
        found = call(rules, "topics", "filtered", topics, wanted)
        assert [each["name"] for each in found] == expected


HOSTILE = SCRIPT + "\x00\x07\n</pre><svg onload=document.title='taken'>"


def test_hostile_message_is_shown_as_text_json_and_hex(
    limited: Limited, open_page: OpenPage
) -> None:
    broker = limited()
    json_value = json.dumps({"html": HOSTILE, "id": 12345678901234567890})
    produce(
        broker,
        "orders",
        {"key": HOSTILE, "value": json_value, "headers": [(HOSTILE, HOSTILE)]},
        {"key": None, "value": b"\xff\x00<b>", "headers": []},
        {"key": "gone", "value": None},
    )
    page = open_page(broker)
    page.find("#tab-topics").click()
    page.wait(lambda: page.count("#topics tbody tr") == 1, "the topic")
    page.find("#topics tbody button").send_keys(Keys.ENTER)
    row = "#messages tbody tr"
    page.wait(lambda: page.count(row) == 3, "its messages")
    assert page.texts(f"{row}:nth-child(2) td.content") == ["null", "ff 00 3c 62 3e"]
    assert page.texts(f"{row}:nth-child(3) td.content") == ["gone", "null"]
    assert "<script>" in page.text(f"{row}:nth-child(1)")
    page.find(f"{row} button").send_keys(Keys.ENTER)
    page.wait(lambda: "12345678901234567890" in page.text("#message"), "it, with every digit")
    assert page.text("#message").count("onerror=") == 4, "in key, header, its name and value"
    page.find(f"{row}:nth-child(2) button").click()
    page.wait(lambda: "000000 ff 00 3c 62 3e" in page.text("#message pre"), "the bytes in hex")
    assert page.count("img") == 1  # the page's own
    assert page.count("script") == 1
    assert "taken" not in page.browser.driver.title


def test_messages_are_produced_searched_and_read_on(limited: Limited, open_page: OpenPage) -> None:
    broker = limited()
    produce(broker, "orders", *({"value": b"number %d" % each} for each in range(150)))
    page = open_page(broker)
    page.find("#tab-topics").click()
    page.wait(lambda: page.count("#topics tbody tr") == 1, "the topic")
    page.find("#topics tbody button").click()
    row = "#messages tbody tr"
    page.wait(lambda: "number 149" in page.text("#messages"), "the last messages")
    Select(page.find("#messages-filter [name=from]")).select_by_value("first")
    page.find("#messages-filter [type=submit]").click()
    page.wait(lambda: "100 messages; there are more" in page.text("#messages"), "the first ones")
    page.find("#messages-more").click()
    page.wait(lambda: page.count(row) == 50, "the rest")
    page.find("#messages-filter [name=search]").send_keys("NUMBER 14", Keys.ENTER)
    page.wait(lambda: "11 of 150 messages match" in page.text("#messages"), "the matches")
    page.find("#messages-filter [name=search]").clear()
    page.find("#produce [name=value]").send_keys("{1}")
    Select(page.find("#produce [name=as]")).select_by_value("json")
    page.find("#produce [type=submit]").click()
    page.wait(lambda: "the value is not JSON: " in page.text("#produce-answer"), "the reason")
    page.find("#produce [name=value]").clear()
    for name, text in (("key", "k"), ("value", "61 62"), ("headers", "kind: new")):
        page.find(f"#produce [name={name}]").send_keys(text)
    Select(page.find("#produce [name=as]")).select_by_value("hex")
    Select(page.find("#messages-filter [name=from]")).select_by_value("last")
    page.find("#produce [type=submit]").click()
    page.wait(lambda: "offset 150 of partition 0" in page.text("#produce-answer"), "its place")
    page.wait(lambda: "k ab" in page.text(f"{row}:last-child"), "it to be listed")
    page.find(f"{row}:last-child button").click()
    page.wait(lambda: "Header kind" in page.text("#message"), "its header")


@pytest.mark.parametrize("dark", [False, True])
def test_phone_shows_messages_without_scrolling_sideways(
    dark: bool, limited: Limited, open_page: OpenPage
) -> None:
    broker = limited()
    produce(broker, "a-topic-with-a-long-name" * 5, {"key": "k" * 300, "value": "v" * 9000})
    page = open_page(broker, PHONE, dark=dark)
    page.find("#tab-topics").click()
    page.wait(lambda: page.count("#topics tbody tr") == 1, "the topic")
    page.find("#topics tbody button").click()
    page.wait(lambda: page.count("#messages tbody tr") == 1, "its message")
    page.find("#messages tbody button").click()
    page.wait(lambda: "vvvv" in page.text("#message"), "all of it")
    script = "const { scrollWidth, clientWidth } = document.documentElement"
    width, visible = page.browser.run(f"{script}; return [scrollWidth, clientWidth]")
    assert width == visible <= PHONE[0]
