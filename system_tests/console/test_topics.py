"""The view of topics: their sizes, partitions and messages."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer
from selenium.webdriver.common.keys import Keys

from system_tests.console.conftest import Limited, OpenPage
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


def test_topics_are_filtered_by_name_and_kind(rules: Browser) -> None:
    topics = [{"name": name, "internal": name.startswith("_")} for name in ("Ab", "b", "_b", "c")]
    for wanted, expected in (
        ({}, ["Ab", "b", "c"]),
        ({"name": " B "}, ["Ab", "b"]),
        ({"name": "b", "internal": True}, ["Ab", "b", "_b"]),
    ):
        found = call(rules, "topics", "filtered", topics, wanted)
        assert [each["name"] for each in found] == expected
