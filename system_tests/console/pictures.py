"""Takes the pictures of the console in docs/: ``make screenshots``.

Owns a broker with limits and quotas, clients that use it, and what is selected in each picture. It
must never assert anything: tests do. Invariant: a run takes all pictures of docs/guides/console.md
in one size, after about half a minute of traffic.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import Consumer, Producer
from selenium.webdriver.common.by import By

from system_tests.connections.dialling import Client
from system_tests.harness.brokers import RunningBroker, start_minibroker
from system_tests.harness.browser import Browser
from system_tests.harness.screenshots import DOCS, save
from system_tests.harness.waiting import wait_until

CONSOLE: Final = DOCS.parent / "minibroker/lab/control/console"
TRAFFIC_S: Final = 40
KNOCKS: Final = 128
SETTINGS: Final = {
    "num.partitions": "3",
    "num.network.threads": "2",
    "max.connections": "120",
    "max.connections.per.ip": "8",
    "max.connections.per.ip.overrides": "127.0.0.1:100",
    "listener.name.external.max.connections": "80",
    "listener.security.protocol.map": "EXTERNAL:PLAINTEXT",
    "quota.consumer.default": "16000",
}
LISTENERS: Final = "PLAINTEXT://127.0.0.1:0,EXTERNAL://127.0.0.1:0"
QUOTAS: Final = {"shop": 4_000, "billing": 40_000}
"""Bytes produced per second of client ids."""


class Picture(NamedTuple):
    """A picture, what is clicked before it is taken, and a text that is then visible."""

    file: str
    view: str
    clicked: tuple[str, ...]
    shown: str


PICTURES: Final = (
    Picture("console.png", "connections", ("#addresses tbody button",), "connections of 127"),
    Picture("console-quotas.png", "quotas", ("#uses tbody button",), "would"),
    Picture(
        "console-topics.png",
        "topics",
        ("#topics tbody button", "#messages tbody button"),
        "Header trace-id",
    ),
    Picture("console-groups.png", "groups", ("#groups tbody tr:nth-child(2) button",), "orders 0"),
)


@contextmanager
def traffic(broker: RunningBroker) -> Iterator[threading.Event]:
    """Clients that produce and consume, too much for some of them, until the end of the block."""
    done = threading.Event()
    threads = [
        threading.Thread(target=produce, args=(broker, "shop", "orders", done)),
        threading.Thread(target=produce, args=(broker, "billing", "payments", done)),
        *(
            threading.Thread(target=consume, args=(broker, group, pause, done))
            for group, pause in (("invoices", 0.02), ("invoices", 0.02), ("audit", 0.2))
        ),
        threading.Thread(target=knock, args=(broker, done)),
    ]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        done.set()
        for thread in threads:
            thread.join()


def produce(broker: RunningBroker, client_id: str, topic: str, done: threading.Event) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "client.id": client_id, "linger.ms": 50}
    )
    number = 0
    while not done.wait(0.05):
        for _ in range(1 + 6 * (number % 100 < 40)):
            order = {"id": number, "customer": f"c{number % 7}", "total": 9.5 + number % 13}
            headers = {"trace-id": b"%08x" % number, "kind": "created"}
            producer.produce(topic, json.dumps(order), key=f"order-{number}", headers=headers)
            number += 1
        producer.poll(0)
    producer.flush(1)


def consume(broker: RunningBroker, group: str, pause_s: float, done: threading.Event) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "client.id": f"{group}-service",
            "group.id": group,
            "group.protocol": "consumer" if group == "invoices" else "classic",
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 500,
        }
    )
    consumer.subscribe(["orders", "payments"])
    while not done.wait(pause_s):
        consumer.poll(0.05)
    consumer.close()


def knock(broker: RunningBroker, done: threading.Event) -> None:
    """Open connections from several addresses, some of them more than one address may have."""
    with ExitStack() as opened:
        number = 0
        host, _, port = broker.bootstrap_servers.split(",")[1].rpartition(":")
        while not done.wait(0.3):
            if number < KNOCKS:
                # Every third one is of an address that soon has as many as it may.
                source = f"127.0.1.{1 + (number % 11 if number % 3 else 0)}"
                opened.enter_context(Client((host, int(port)), source))
            number += 1


def set_quotas(broker: RunningBroker) -> None:
    for client, rate in QUOTAS.items():
        command = ["configs", "-b", broker.bootstrap_servers, "--alter", "--client", client]
        command += ["--add-config", f"producer_byte_rate={rate}"]
        subprocess.run([sys.executable, "-m", "minibroker", *command], check=True)


def click(browser: Browser, selector: str) -> bool:
    """Click what is drawn again several times a second."""
    script = """const found = document.querySelector(args[0]);
        found?.dispatchEvent(new MouseEvent("click", { bubbles: true }));
        return Boolean(found)"""
    return bool(browser.run(script, selector))


def take(browser: Browser, broker: RunningBroker, picture: Picture) -> None:
    """Open the console, select something, and save what is visible."""
    browser.look_like(still=True)
    browser.driver.get(f"{(broker.control_url or '').rstrip('/')}/console#{picture.view}")
    for selector in picture.clicked:
        wait_until(partial(click, browser, selector), f"{selector} to be drawn")
    wait_until(
        lambda: picture.shown in browser.driver.find_element(By.TAG_NAME, "main").text,
        f"{picture.shown} to be shown",
    )
    browser.run("scrollTo(0, 0)")
    save(browser.driver.get_screenshot_as_png(), DOCS / picture.file, CONSOLE)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        start_minibroker(settings=SETTINGS, listener=LISTENERS) as broker,
    ):
        set_quotas(broker)
        with traffic(broker) as done:
            done.wait(TRAFFIC_S)
            browser = Browser(Path(folder) / "profile")
            try:
                for picture in PICTURES:
                    take(browser, broker, picture)
            finally:
                browser.close()


if __name__ == "__main__":
    main()
