"""The console as users see it.

Owns where on the page something is found; tests say what must be visible. Invariant: every look is
one script in the page, so that its result existed at one moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from system_tests.harness.brokers import RunningBroker
from system_tests.harness.browser import Browser
from system_tests.harness.waiting import wait_until


class Page:
    """The console of one broker, open in a browser."""

    def __init__(self, browser: Browser, broker: RunningBroker) -> None:
        assert broker.control_url is not None
        self.browser = browser
        self.origin = broker.control_url.rstrip("/")
        browser.driver.get(self.origin)
        self.wait(lambda: self.state() == "live", "the page to draw the broker")

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        return wait_until(condition, what)

    def state(self) -> str:
        return str(self.browser.run("return document.body.dataset.state"))

    def status(self) -> str:
        return self.text("#status")

    def find(self, selector: str) -> WebElement:
        return self.browser.driver.find_element(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """The visible text of each element, blanks and line ends as one blank."""
        script = "return [...document.querySelectorAll(args[0])].map((each) => each.innerText)"
        return [" ".join(text.split()) for text in self.browser.run(script, selector)]

    def text(self, selector: str) -> str:
        return " ".join(self.texts(selector))

    def count(self, selector: str) -> int:
        return int(self.browser.run("return document.querySelectorAll(args[0]).length", selector))

    def marks(self) -> list[str]:
        """What each mark in a processor is called, those that are going out left out."""
        script = """return [...document.querySelectorAll(".marks [role=option]")]
            .map((mark) => mark.getAttribute("aria-label"))"""
        return list(self.browser.run(script))

    def wait_for_marks(self, expected: int) -> None:
        self.wait(lambda: len(self.marks()) == expected, f"{expected} connections to be drawn")

    def shown_connections(self) -> int:
        """The processors' own figures, added up."""
        return sum(int(text.replace(",", "")) for text in self.texts(".room-count"))
