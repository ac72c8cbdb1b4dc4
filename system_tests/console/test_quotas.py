"""The quota view with a complete broker: a quota is set, a throttle starts, is explained, and
ends.
"""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest
from confluent_kafka import Producer
from selenium.webdriver.common.keys import Keys

from system_tests.connections.dialling import change_clock
from system_tests.console.conftest import Limited, OpenPage
from system_tests.console.test_page import PHONE, SCRIPT
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.control import ask
from system_tests.harness.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.minibroker


def produce(broker: RunningBroker, client_id: str, size: int) -> None:
    """Send one record; the connection stays open until the end of the test."""
    config = {"bootstrap.servers": broker.bootstrap_servers, "client.id": client_id}
    producer = Producer(config)
    producer.produce("orders", b"x" * size)
    assert producer.flush(PATIENCE_S) == 0


def test_quota_from_its_setting_to_the_end_of_a_throttle(
    limited: Limited, open_page: OpenPage
) -> None:
    broker = limited()
    page = open_page(broker)
    assert not page.find("#view-quotas").is_displayed()
    page.find("#tab-connections").send_keys(Keys.ARROW_RIGHT)
    page.wait(lambda: "No quota is set." in page.text("#uses"), "the view to be drawn")
    assert not page.find("#view-connections").is_displayed()
    # Run the command that the page suggests, with a lower value.
    program, *words = shlex.split(page.text("#uses .command"))
    assert program == "minibroker"
    command = [word.replace("=1048576", "=1000") for word in words]
    subprocess.run([sys.executable, "-m", "minibroker", *command], check=True, timeout=PATIENCE_S)

    change_clock(broker, freeze=True)  # or the throttle might be over before it is looked at
    produce(broker, SCRIPT, 20_000)
    produced = "#uses tr[data-type=produce]"
    page.wait(lambda: page.count(f"{produced}.held") == 1, "the throttle to be shown")
    assert SCRIPT in page.text(produced)
    assert "/ 1 kB/s" in page.text(f"{produced} .meter-value")
    assert "throttled" in page.text(f"{produced} span.held")
    assert page.text("#held") == "1"
    assert "M" in str(page.find(f"{produced} .throttled").get_attribute("d"))
    assert page.texts("#throttles li.held .what") == ["Produce · bytes produced"]

    page.find(f"{produced} button").send_keys(Keys.ENTER)
    page.wait(lambda: "would wait" in page.text("#explained"), "the explanation")
    assert SCRIPT in page.text("#explained .note")
    assert "(rate - quota) / quota * window" in page.text("#explained .formula")
    assert page.texts("#explained .holds code") == ["/config/clients/<default>"]
    assert "1,000" in page.text("#explained .holds")
    assert page.count("#explained .levels li") == 5

    change_clock(broker, advance_ms=60_000)
    page.wait(lambda: page.count("#uses .held") == 0, "the throttle to end")
    page.wait(lambda: "would not wait" in page.text("#explained"), "that to be explained")
    page.wait(lambda: page.count("#throttles li.held") == 0, "it to be past")
    assert page.text("#held") == ""
    assert page.count("img") == 1  # the page's own
    assert "taken" not in page.browser.driver.title

    # What held it then can still be seen, with the numbers of its moment.
    page.find("#throttles button").click()
    page.wait(lambda: "Produce waited" in page.text("#explained"), "the past to be explained")
    assert "min" in page.text("#explained .verdict").partition(", ")[2]
    assert "(rate - quota) / quota * window" in page.text("#explained .formula")
    pressed = "button[aria-pressed=true]"
    assert (page.count(f"#throttles {pressed}"), page.count(f"#uses {pressed}")) == (1, 0)
    page.find("#throttles button").click()
    page.wait(lambda: "Click an entity" in page.text("#explained"), "no selection")
    assert page.count(f"#throttles {pressed}") == 0


def test_line_of_usage_is_there_on_load(limited: Limited, open_page: OpenPage) -> None:
    broker = limited("quota.producer.default=1000000")
    produce(broker, "shop", 20_000)

    def samples() -> int:
        uses = ask(broker, "GET", "/v1/quotas/history")["uses"]
        return sum(len(use["rates"]) for use in uses)

    wait_until(lambda: samples() >= 2, "two samples")
    page = open_page(broker)
    page.find("#tab-quotas").click()
    line = "#uses tr[data-type=produce] .use"
    page.wait(lambda: page.count(line) == 1, "the client to be drawn")
    started = float(str(page.find(line).get_attribute("d")).partition(" ")[0].removeprefix("M"))
    assert started <= 118, "it starts at least two seconds ago: the page is younger"


@pytest.mark.parametrize("dark", [False, True])
def test_phone_shows_quotas_without_scrolling_sideways(
    dark: bool, limited: Limited, open_page: OpenPage
) -> None:
    broker = limited("quota.producer.default=1000")
    page = open_page(broker, PHONE, dark=dark)
    page.find("#tab-quotas").click()
    change_clock(broker, freeze=True)
    produce(broker, "reports-of-a-client-with-a-name-that-is-long" * 3, 20_000)
    page.wait(lambda: page.count("#uses tr.held") == 1, "the throttle")
    page.find("#uses tbody button").click()
    page.wait(lambda: "would wait" in page.text("#explained"), "the explanation")
    assert page.texts("#explained .holds code") == ["quota.producer.default"]
    script = "const { scrollWidth, clientWidth } = document.documentElement"
    width, visible = page.browser.run(f"{script}; return [scrollWidth, clientWidth]")
    assert width == visible <= PHONE[0]
