"""The view of consumer groups: lag, members, assignment and the reset of offsets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from system_tests.console.conftest import Limited, OpenPage
from system_tests.console.page import Page
from system_tests.console.test_page import PHONE, SCRIPT
from system_tests.console.test_rules import call
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.browser import Browser
from system_tests.harness.control import ask
from system_tests.harness.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.minibroker

RECORDS = 20
READ = 5


@contextmanager
def consuming(broker: RunningBroker, group: str) -> Iterator[None]:
    """A member of a group that has read some of the records, and whose lag was sampled."""
    servers = {"bootstrap.servers": broker.bootstrap_servers, "client.id": SCRIPT}
    producer = Producer(servers)
    for number in range(RECORDS):
        producer.produce("orders", b"%d" % number)
    assert producer.flush(PATIENCE_S) == 0
    member = Consumer(
        {**servers, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    member.subscribe(["orders"])
    for _ in range(READ):
        while (message := member.poll(0.1)) is None:
            pass
        member.commit(message, asynchronous=False)
    wait_until(lambda: lag_of(broker, group)["lags"], "a sample of the lag")
    yield
    member.close()


def lag_of(broker: RunningBroker, group: str) -> dict[str, Any]:
    groups = ask(broker, "GET", "/v1/lag")["groups"]
    return next(each for each in groups if each["group_id"] == group)


def fill(page: Page, **fields: str) -> None:
    for name, value in fields.items():
        field = page.find(f"#reset [name={name}]")
        if field.tag_name == "select":
            Select(field).select_by_value(value)
        else:
            field.clear()
            field.send_keys(value)


def test_group_is_shown_with_its_members_and_reset_once_they_are_gone(
    limited: Limited, open_page: OpenPage
) -> None:
    broker = limited()
    with consuming(broker, SCRIPT):
        page = open_page(broker)
        page.find("#tab-connections").send_keys(Keys.END)
        page.wait(lambda: page.count("#groups tbody tr") == 1, "the group to be listed")
        name, state, members, lag, _ = page.texts("#groups tbody tr > *")
        assert [name, state, members, lag] == [SCRIPT, "Stable", "1", str(RECORDS - READ)]
        line = str(page.find("#groups tbody .use").get_attribute("d"))
        assert line.startswith("M"), "the plot is not empty on load"
        assert "L" in line
        page.find("#groups tbody button").send_keys(Keys.ENTER)
        page.wait(lambda: "orders 0" in page.text("#group"), "the assignment")
        assert SCRIPT in page.text("#group")
        assert page.texts("#group .about table:last-of-type tbody tr") == ["orders 0 5 20 15"]
        page.find("#reset button[value=reset]").click()
        page.wait(lambda: "has 1 members" in page.text("#reset-answer"), "the reason")
        assert "status of 409" in page.browser.complaints()[0]
    page.wait(lambda: "no members" in page.text("#group"), "the member to be gone")
    fill(page, to="shift", value="-3")
    page.find("#reset button[value=preview]").click()
    page.wait(lambda: page.text("#reset-answer") == "It would change: orders-0: 5 \u2192 2", "it")
    assert lag_of(broker, SCRIPT)["lag"] == RECORDS - READ
    page.find("#reset button[value=reset]").send_keys(Keys.ENTER)
    page.wait(lambda: page.text("#reset-answer") == "Changed: orders-0: 5 \u2192 2", "the change")
    page.wait(lambda: "18" in page.texts("#groups tbody td"), "the lag after it")
    assert page.count("img") == 1  # the page's own
    assert "taken" not in page.browser.driver.title


def test_group_whose_id_is_two_periods_is_shown_and_reset(
    limited: Limited, open_page: OpenPage
) -> None:
    """A browser removes `..` from the path of a URL."""
    broker = limited()
    with consuming(broker, ".."):
        page = open_page(broker)
        page.find("#tab-groups").click()
        page.wait(lambda: page.count("#groups tbody tr") == 1, "the group to be listed")
        page.find("#groups tbody button").click()
        page.wait(lambda: "orders 0" in page.text("#group"), "its members")
    page.wait(lambda: "no members" in page.text("#group"), "the member to be gone")
    page.find("#reset button[value=reset]").click()
    page.wait(lambda: page.text("#reset-answer") == "Changed: orders-0: 5 \u2192 0", "the change")


@pytest.mark.parametrize("dark", [False, True])
def test_phone_shows_a_group_without_scrolling_sideways(
    dark: bool, limited: Limited, open_page: OpenPage
) -> None:
    broker = limited()
    with consuming(broker, "a-group-whose-name-is-long" * 4):
        page = open_page(broker, PHONE, dark=dark)
        page.find("#tab-groups").click()
        page.wait(lambda: page.count("#groups tbody tr") == 1, "the group")
        page.find("#groups tbody button").click()
        page.wait(lambda: "orders 0" in page.text("#group"), "its members")
        script = "const { scrollWidth, clientWidth } = document.documentElement"
        width, visible = page.browser.run(f"{script}; return [scrollWidth, clientWidth]")
        assert width == visible <= PHONE[0]


SIZE = {"width": 150, "height": 12}


def test_plot_ends_with_the_present_value_and_has_gaps(rules: Browser) -> None:
    found = call(rules, "plots", "plot", [0, None, 5, 10], 5, SIZE)
    assert found == {"path": "M110 11M130 6L140 1L150 6", "top": 10, "span": 15}
    found = call(rules, "plots", "plot", list(range(30)), None, SIZE)
    assert (found["span"], found["path"].startswith("M0 11L5")) == (30, True)


@pytest.mark.parametrize(
    ("values", "present", "path"),
    [([], None, ""), ([], 3, "M148 1H150"), ([None], 0, "M148 11H150")],
)
def test_plot_of_at_most_one_value(
    rules: Browser, values: list[int | None], present: int | None, path: str
) -> None:
    assert call(rules, "plots", "plot", values, present, SIZE)["path"] == path


RESET = {"topic": "t", "to": "earliest", "value": "", "partitions": ""}


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ({}, {}),
        ({"partitions": " 0, 2,"}, {"partitions": [0, 2]}),
        ({"to": "shift", "value": "-5"}, {"to": "shift", "value": -5}),
        ({"to": "timestamp", "value": "1700000000000"}, {"value": 1_700_000_000_000}),
        ({"to": "timestamp", "value": "2023-11-14T22:13:20Z"}, {"value": 1_700_000_000_000}),
    ],
)
def test_reset_is_read_from_the_form(
    rules: Browser, fields: dict[str, str], body: dict[str, Any]
) -> None:
    found = call(rules, "groups", "resetOf", {**RESET, **fields})
    assert found == {"topic": "t", "to": fields.get("to", "earliest"), **body}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"partitions": "0-2"}, "partition must be a whole number"),
        ({"to": "offset", "value": "1.5"}, "value must be a whole number"),
        ({"to": "timestamp", "value": "yesterday"}, "value must be a time"),
    ],
)
def test_reset_that_cannot_be_read_has_a_reason(
    rules: Browser, fields: dict[str, str], why: str
) -> None:
    with pytest.raises(AssertionError, match=why):
        call(rules, "groups", "resetOf", {**RESET, **fields})


NONE = "\N{EN DASH}"
MEMBER: dict[str, Any] = {
    "member_id": "m",
    "group_instance_id": None,
    "client_id": "c",
    "client_host": "/h",
    "assignment": [{"topic": "t", "partitions": [0, 2]}],
    "consumer": None,
}
KIP_848 = {
    "member_epoch": 4,
    "state": "UNREVOKED_PARTITIONS",
    "is_classic": False,
    "target": [{"topic": "t", "partitions": [0]}],
    "to_revoke": [{"topic": "t", "partitions": [2]}],
}


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({}, ["m", "c /h", NONE, "t 0, 2", NONE]),
        ({"group_instance_id": "i", "assignment": []}, ["i", "c /h", NONE, "nothing", NONE]),
        ({"consumer": KIP_848}, ["m", "c /h", "4", "t 0, 2, to revoke: t 2", "t 0"]),
        (
            {"consumer": {**KIP_848, "to_revoke": [], "target": []}},
            ["m", "c /h", "4", "t 0, 2", "nothing"],
        ),
    ],
)
def test_texts_of_a_member(rules: Browser, fields: dict[str, Any], texts: list[str]) -> None:
    assert call(rules, "groups", "memberTexts", {**MEMBER, **fields}) == texts


def test_text_of_a_group(rules: Browser) -> None:
    group = {"group_id": "g", "state": "Stable", "protocol": "", "coordinator": "worker-0"}
    of_classic = {**group, "generation": 3, "assignment_epoch": None}
    assert call(rules, "groups", "groupText", of_classic) == "g: Stable, coordinator worker-0"
    of_consumer = {**group, "protocol": "uniform", "generation": 3, "assignment_epoch": 2}
    expected = "g: Stable, assignor uniform, epoch 3, assignment epoch 2, coordinator worker-0"
    assert call(rules, "groups", "groupText", of_consumer) == expected


def test_consumer_group_is_shown_with_its_epochs_and_what_it_waits_for(
    limited: Limited, open_page: OpenPage
) -> None:
    broker = limited()
    servers = {"bootstrap.servers": broker.bootstrap_servers, "client.id": SCRIPT}
    producer = Producer(servers)
    producer.produce("orders", b"one")
    assert producer.flush(PATIENCE_S) == 0
    member = Consumer({**servers, "group.id": "modern", "group.protocol": "consumer"})
    member.subscribe(["orders"])
    while not member.assignment():
        member.poll(0.1)
    page = open_page(broker)
    page.find("#tab-groups").click()
    page.wait(lambda: page.count("#groups tbody tr") == 1, "the group to be listed")
    page.find("#groups tbody button").click()
    page.wait(lambda: "assignment epoch" in page.text("#group"), "its epochs")
    assert "orders 0" in page.texts("#group .about table:first-of-type tbody td")[-1]
    act = {"action": "rebalance", "group": "modern"}
    ask(broker, "POST", "/v1/actions", act)
    reason = "computed with the first heartbeat"
    page.wait(lambda: reason in page.text("#group .waits"), "what it waits for")
    member.close()
