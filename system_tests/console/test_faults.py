"""The view of the fault rules: added as JSON, counted, released and removed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import Producer

from system_tests.connections.conftest import Limited
from system_tests.console.conftest import OpenPage
from system_tests.console.page import Page
from system_tests.console.test_page import PHONE
from system_tests.console.test_rules import call
from system_tests.harness.browser import Browser
from system_tests.harness.control import ask
from system_tests.harness.waiting import PATIENCE_S

pytestmark = pytest.mark.minibroker

ROW = "#faults tbody tr"


def add(page: Page, **rule: Any) -> None:
    text = page.find("#faults-form textarea")
    text.clear()
    text.send_keys(json.dumps(rule))
    page.find("#faults-form button").click()


def rows(page: Page) -> list[list[str]]:
    """Rule, matches, hits and what is held, of each row."""
    texts = page.texts(f"{ROW} > *:not(:last-child)")
    return [texts[start : start + 4] for start in range(0, len(texts), 4)]


def test_rules_are_added_counted_released_and_removed(
    limited: Limited, open_page: OpenPage
) -> None:
    broker = limited()
    page = open_page(broker)
    page.find("#tab-faults").click()
    page.wait(lambda: "No rule is set" in page.text("#faults"), "the view to be drawn")
    add(page, action="hold", api="Produce", client_id="<b>shop</b>", name="held")
    text = "held hold api=Produce client_id=<b>shop</b>"
    page.wait(lambda: rows(page) == [[text, "0", "0", "0"]], "the rule, whose name is no HTML")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": "<b>shop</b>"})
    producer.produce("orders", b"x")
    page.wait(lambda: [row[1:] for row in rows(page)] == [["1", "1", "1"]], "the rule to hold")
    assert page.text(f"{ROW} .holds").startswith("PRODUCE of <b>shop</b>, topic orders")
    page.find("[aria-label='Release rule held']").click()
    assert producer.flush(PATIENCE_S) == 0
    page.wait(lambda: [row[3] for row in rows(page)] == ["0"], "the rule to hold nothing")
    page.find("[aria-label='Remove rule held']").click()
    page.wait(lambda: page.count(ROW) == 0, "the rule to be removed")


@pytest.mark.parametrize("dark", [False, True])
def test_phone_shows_a_rule_over_the_whole_width(
    dark: bool, limited: Limited, open_page: OpenPage
) -> None:
    broker = limited()
    rule = {"action": "error", "error": "NOT_ENOUGH_REPLICAS", "topic": "a-long-name" * 9}
    ask(broker, "POST", "/v1/faults", rule)
    page = open_page(broker, PHONE, dark=dark)
    page.find("#tab-faults").click()
    page.wait(lambda: page.count(ROW) == 1, "the rule")
    script = """const width = (name) => document.querySelector(name).getBoundingClientRect().width;
        const { scrollWidth, clientWidth } = document.documentElement;
        return [scrollWidth, clientWidth, width(args[0]), width("#faults")]"""
    width, visible, of_rule, of_panel = page.browser.run(script, f"{ROW} th")
    assert width == visible <= PHONE[0]
    assert of_rule > 0.8 * of_panel


def test_rejected_rule_stays_in_the_form_with_the_reason(
    limited: Limited, open_page: OpenPage
) -> None:
    page = open_page(limited())
    page.find("#tab-faults").click()
    add(page, action="error", api="Produced", error="NOT_ENOUGH_REPLICAS")
    page.wait(lambda: "there is no API 'Produced'" in page.text("#faults-problem"), "the reason")
    assert page.count(ROW) == 0
    [complaint] = page.browser.complaints()
    assert "status of 400" in complaint, "the browser logs it"
    add(page, action="error", api="Produce", error="NOT_ENOUGH_REPLICAS")
    page.wait(lambda: page.count(ROW) == 1, "the mended rule")
    # The row may come with an update of the list, before the form has its answer.
    page.wait(lambda: page.text("#faults-problem") == "", "the end of the reason")


def test_hold_is_described_by_what_is_known(rules: Browser) -> None:
    known = {"process": "controller", "api": None, "client_id": None, "connection": 7}
    assert call(rules, "faults", "holdText", known) == "controller"
    group = {**known, "api": "JoinGroup", "client_id": "c", "group": "g", "transactional_id": None}
    assert call(rules, "faults", "holdText", group) == "JoinGroup of c, group g"
