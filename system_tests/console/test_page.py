"""The console with complete brokers, as users see it."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import ExitStack

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from minibroker_protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from system_tests.connections.conftest import as_settings
from system_tests.connections.dialling import Client
from system_tests.console.conftest import Dial, Limited, OpenPage
from system_tests.console.page import Page
from system_tests.faults.killing import COMBINED, DEFAULT_LAYOUT, SEPARATE
from system_tests.harness.brokers import free_port, start_minibroker
from system_tests.harness.browser import Browser
from system_tests.harness.control import kill_process, processes

pytestmark = pytest.mark.minibroker

CROWD = 2000
PHONE = (390, 844)


def test_page_works_at_the_printed_url_with_a_token(browser: Browser) -> None:
    with start_minibroker("--control", "0.0.0.0:0") as broker:
        page = Page(browser, broker)
        assert "@" in page.origin
        page.find("#tab-faults").click()
        page.wait(lambda: "No rule is set" in page.text("#faults"), "the view to be drawn")
        page.find("#faults-form button").click()
        page.wait(lambda: page.count("#faults tbody tr") == 1, "a rule to be added")
        browser.driver.get("about:blank")


def test_listeners_queues_and_processors_are_drawn(limited: Limited, open_page: OpenPage) -> None:
    broker = limited(
        "max.connections=100",
        "num.network.threads=3",
        "listener.name.external.max.connections=40",
        "listener.security.protocol.map=EXTERNAL:PLAINTEXT",
        listener="PLAINTEXT://127.0.0.1:0,EXTERNAL://127.0.0.1:0",
    )
    page = open_page(broker)
    assert page.texts(".card h3") == ["PLAINTEXT", "EXTERNAL"]
    assert (
        page.text("[data-listener=PLAINTEXT] .endpoint") == broker.bootstrap_servers.split(",")[0]
    )
    assert "connections 0 / 40" in page.text("[data-listener=EXTERNAL]")
    assert page.texts(".room h3") == ["processor-0", "processor-1", "processor-2"]
    assert page.count(".slot") == 3 * 20
    assert page.count(".slot.used") == 0
    assert page.text("#acceptor") == "open not blocked"
    assert "connections 0 / 100" in page.text("#totals")
    assert page.text("#addresses") == "No clients are connected."


def test_connection_mark_appears_shows_details_and_closes(
    limited: Limited, dial: Dial, open_page: OpenPage
) -> None:
    broker = limited()
    page = open_page(broker)
    (client,) = dial(broker, 1, "127.0.0.7")
    assert client.answered()
    address = "127.0.0.7:" + str(client.socket.getsockname()[1])
    page.wait(lambda: page.marks() == [f"{address} dialling"], "the connection to be drawn")
    assert page.texts("#addresses tbody th") == ["127.0.0.7"]
    # As one does without a mouse: to the marks, to the first of them.
    page.find(".marks:not(:empty)").send_keys(Keys.ARROW_RIGHT)
    page.wait(lambda: "client id dialling" in page.text("#chosen"), "its details to be reported")
    assert f"address {address}" in page.text("#chosen")
    assert page.count(".marks rect.chosen[aria-selected=true]") == 1
    client.close()
    page.wait_for_marks(0)
    page.wait(lambda: "is closed" in page.text("#chosen"), "its end to be reported")


def test_pointed_connection_shows_its_client(
    limited: Limited, dial: Dial, open_page: OpenPage
) -> None:
    broker = limited("num.network.threads=1")
    for source in ("127.0.0.2", "127.0.0.3"):
        assert dial(broker, 1, source)[0].answered()
    page = open_page(broker)
    page.wait_for_marks(2)
    ActionChains(page.browser.driver).move_to_element(page.find(".marks rect")).perform()
    page.wait(lambda: "dialling" in page.text("#tip"), "a word about the mark")
    page.find("#addresses tbody button").click()
    assert page.count(".marks .dimmed") == 1
    assert "1 connection of 127.0.0." in page.text("#chosen")


def test_listed_connections_of_address_are_bounded(
    limited: Limited, dial: Dial, open_page: OpenPage
) -> None:
    broker = limited()
    dial(broker, 60, "127.0.0.5")
    page = open_page(broker)
    page.wait_for_marks(60)
    page.find("#addresses tbody button").click()
    assert page.text("#chosen .note") == "60 connections of 127.0.0.5"
    assert page.count("#chosen .listed button") == 50
    assert page.text("#chosen .more") == "and 10 more"


def test_address_rows_keep_order_while_pointed_at(
    limited: Limited, dial: Dial, open_page: OpenPage
) -> None:
    broker = limited()
    dial(broker, 1, "127.0.0.2")
    dial(broker, 2, "127.0.0.3")
    page = open_page(broker)
    page.wait(
        lambda: page.texts("tbody tr") == ["127.0.0.3 2 \N{EN DASH}", "127.0.0.2 1 \N{EN DASH}"],
        "both",
    )
    ActionChains(page.browser.driver).move_to_element(page.find("tbody tr:last-child")).perform()
    dial(broker, 3, "127.0.0.2")
    page.wait(
        lambda: page.texts("tbody tr") == ["127.0.0.3 2 \N{EN DASH}", "127.0.0.2 4 \N{EN DASH}"],
        "no move",
    )
    ActionChains(page.browser.driver).move_to_element(page.find("h1")).perform()
    page.wait(
        lambda: page.texts("tbody tr") == ["127.0.0.2 4 \N{EN DASH}", "127.0.0.3 2 \N{EN DASH}"],
        "the move",
    )


PAINTED = """
    const canvas = document.getElementById("flights");
    const copy = new OffscreenCanvas(canvas.width, canvas.height);
    const ink = copy.getContext("2d", { willReadFrequently: true });
    ink.drawImage(canvas, 0, 0);
    return ink.getImageData(0, 0, copy.width, copy.height).data.some((value) => value > 0);
"""


@pytest.mark.parametrize("still", [False, True])
def test_arrivals_are_animated_unless_motion_is_reduced(
    still: bool, limited: Limited, dial: Dial, open_page: OpenPage
) -> None:
    broker = limited()
    page = open_page(broker, still=still)

    def painted() -> bool:
        dial(broker)
        return bool(page.browser.run(PAINTED))

    if still:
        page.wait(lambda: painted() or len(page.marks()) > 5, "some to be drawn")
        assert not painted()
    else:
        page.wait(painted, "one in flight")


def test_waiting_connection_is_drawn_at_listener(
    limited: Limited, dial: Dial, open_page: OpenPage
) -> None:
    broker = limited("max.connections=2")
    assert all(client.answered() for client in dial(broker, 2))
    page = open_page(broker)
    dial(broker, 1, "127.0.0.3")
    page.wait(lambda: "1 waiting" in page.text(".queueing"), "one to wait")
    assert page.count(".queueing .key.waiting") == 1
    page.wait(lambda: "blocked" in page.text("#acceptor.blocked"), "the acceptor to be blocked")
    assert len(page.marks()) == 2


def test_rejected_connection_is_listed_with_reason(
    limited: Limited, dial: Dial, open_page: OpenPage
) -> None:
    broker = limited("max.connections.per.ip=1")
    page = open_page(broker)
    assert dial(broker, 1, "127.0.0.9")[0].answered()
    assert all(client.is_disconnected() for client in dial(broker, 2, "127.0.0.9"))
    page.wait(lambda: "\N{MULTIPLICATION SIGN} 2" in page.text(".rejections"), "both to be listed")
    (rejection,) = page.texts(".rejections li")
    assert rejection.startswith("127.0.0.9")
    assert "max.connections.per.ip" in rejection
    assert page.count(".rejections [data-reason=max_connections_per_ip]") == 1


def test_unserved_client_is_shown_as_a_warning(limited: Limited, open_page: OpenPage) -> None:
    broker = limited("group.coordinator.rebalance.protocols=classic")
    page = open_page(broker)
    assert not page.find("#warnings-panel").is_displayed()
    with Client(broker.address, client_id="payments") as client:
        for _ in range(2):
            client.ask(ConsumerGroupHeartbeatRequest(group_id="g"), 0)
        page.wait(
            lambda: "\N{MULTIPLICATION SIGN} 2" in page.text("#warnings"), "both requests to count"
        )
    (warning,) = page.texts("#warnings li")
    assert "payments" in warning
    assert "It requested the consumer group protocol of KIP-848" in warning
    assert "set group.protocol=classic" in warning


@pytest.mark.parametrize(
    ("layout", "stopped"),
    [(DEFAULT_LAYOUT, ["processor-0", "worker-0"]), (SEPARATE, ["worker-0"])],
    ids=["default", "separate"],
)
def test_condition_is_shown_above_both_views_while_it_lasts(
    layout: Mapping[str, str], stopped: list[str], limited: Limited, open_page: OpenPage
) -> None:
    broker = limited(*as_settings(layout))
    page = open_page(broker)
    assert not page.find("#conditions-panel").is_displayed()
    pid = processes(broker)["worker-0"].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        page.wait(
            lambda: page.text("#conditions").count("not responding") == len(stopped),
            "the condition to show",
        )
        assert page.texts("#conditions strong") == stopped
        page.find("#tab-quotas").click()
        assert page.find("#conditions-panel").is_displayed()
    finally:
        os.kill(pid, signal.SIGCONT)
    page.wait(lambda: not page.find("#conditions-panel").is_displayed(), "the condition to end")


def test_where_processors_accept_no_acceptor_is_drawn(
    limited: Limited, dial: Dial, open_page: OpenPage
) -> None:
    broker = limited(
        "acceptor.mode=sharded", "num.network.threads=2", "kafka_connections_max_per_ip=1"
    )
    page = open_page(broker)
    assert not page.find("#acceptor").is_displayed()
    assert page.texts(".queue") == ["accepts", "accepts"]
    assert page.count(".slot") == 0
    assert dial(broker, 1, "127.0.0.2")[0].answered()
    assert dial(broker, 1, "127.0.0.2")[0].is_disconnected()
    page.wait_for_marks(1)
    page.wait(lambda: "kafka_connections_max_per_ip" in page.text(".rejections"), "the rejection")


SCRIPT = "<img src=x onerror=\"document.title='taken'\"><script>alert(1)</script>\u202e'\"&lt;"


def test_client_id_with_markup_is_shown_as_text(
    limited: Limited, open_page: OpenPage, browser: Browser
) -> None:
    broker = limited()
    page = open_page(broker)
    with Client(broker.address, client_id=SCRIPT) as client:
        assert client.answered()
        page.wait(lambda: any(SCRIPT in mark for mark in page.marks()), "the name to be drawn")
        page.find(".marks:not(:empty)").send_keys(Keys.HOME)
        page.wait(lambda: SCRIPT in page.text("#chosen"), "the name to be reported")
        page.find("#addresses tbody button").click()
        page.wait(lambda: SCRIPT in page.text("#chosen .listed"), "the name to be listed")
        assert page.count("img") == 1  # the page's own
        assert page.count("script") == 1
        assert "taken" not in browser.driver.title


def test_page_reports_killed_broker_and_recovers_on_restart(browser: Browser) -> None:
    at = ["--control", f"127.0.0.1:{free_port()}"]
    broker = start_minibroker(*at, settings={"num.network.threads": "2"})
    page = Page(browser, broker)
    try:
        broker.kill()
        page.wait(lambda: page.state() == "silent", "the page to notice")
        assert "Not answering: the connection was refused; last seen" in page.status()
        assert page.texts(".room h3") == ["processor-0", "processor-1"]
        broker.forget()
        broker = start_minibroker(*at, settings={"num.network.threads": "1"})
        page.wait(lambda: page.state() == "live", "the page to recover")
        page.wait(lambda: page.texts(".room h3") == ["processor-0"], "the parts of the new one")
        assert page.count(".wires polyline") == 3  # to the acceptor, to the queue, to the processor
        assert page.status() == "live"
        with Client(broker.address) as client:
            assert client.answered()
            page.wait_for_marks(1)
    finally:
        browser.driver.get("about:blank")
        broker.stop()
        broker.forget()


@pytest.mark.parametrize("layout", [COMBINED, SEPARATE], ids=["combined", "separate"])
def test_page_survives_process_kill(
    layout: Mapping[str, str], limited: Limited, dial: Dial, open_page: OpenPage
) -> None:
    broker = limited(*as_settings(layout))
    page = open_page(broker)
    clients = dial(broker, 4)
    assert all(client.answered() for client in clients)
    page.wait_for_marks(4)
    for name, left in (("acceptor", 4), ("processor-1", 2)):
        kill_process(broker, name)
        page.wait_for_marks(left)
        assert page.texts(".room h3") == ["processor-0", "processor-1"]


def test_two_thousand_connections_stay_drawn(limited: Limited, open_page: OpenPage) -> None:
    broker = limited()
    page = open_page(broker)
    with ExitStack() as opened:
        for number in range(CROWD):
            opened.enter_context(Client(broker.address, f"127.0.3.{number % 200 + 1}"))
        page.wait(lambda: page.shown_connections() == CROWD, "all to be drawn")
        assert 100 <= len(page.marks()) <= CROWD
        assert set(page.texts(".room-scale")) == {"each mark is 10"}
        assert page.text("#totals").startswith("connections 2,000")
        page.find(".marks").send_keys(Keys.HOME)
        page.wait(lambda: page.text("#chosen .note") == "10 connections", "a mark's ten")
        assert page.count("#chosen .listed button") == 10
        page.find("#chosen .listed button").click()
        page.wait(lambda: "listener PLAINTEXT" in page.text("#chosen dl"), "one of them")
    page.wait_for_marks(0)


@pytest.mark.parametrize("dark", [False, True])
def test_console_fits_phone_width(
    dark: bool, limited: Limited, dial: Dial, open_page: OpenPage
) -> None:
    broker = limited("max.connections=1000000", "max.connection.creation.rate=1000000")
    assert all(client.answered() for client in dial(broker, 3))
    page = open_page(broker, PHONE, dark=dark)
    page.wait_for_marks(3)
    script = "const { scrollWidth, clientWidth } = document.documentElement"
    width, visible = page.browser.run(f"{script}; return [scrollWidth, clientWidth]")
    assert width == visible <= PHONE[0]
    ground = page.browser.run("return getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(14, 19, 20)" if dark else "rgb(244, 245, 242)")
