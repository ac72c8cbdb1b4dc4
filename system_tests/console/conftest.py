"""One browser for all tests of the console; each looks at a page of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pytest

from system_tests.conftest import without_toolchain
from system_tests.connections.conftest import Dial, Limited, dial, limited
from system_tests.console.page import Page
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.browser import WIDE, Browser
from system_tests.harness.jars import ToolchainMissing

__all__ = ["Dial", "Limited", "dial", "limited"]


class OpenPage(Protocol):
    def __call__(
        self,
        broker: RunningBroker,
        size: tuple[int, int] = ...,
        *,
        dark: bool = ...,
        still: bool = ...,
    ) -> Page: ...


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    try:
        running = Browser(tmp_path_factory.mktemp("browser") / "profile")
    except ToolchainMissing as missing:
        without_toolchain(missing)
        raise
    yield running
    running.close()


@pytest.fixture
def open_page(browser: Browser, limited: Limited) -> Iterator[OpenPage]:
    """Open a broker's console; at the end nothing may have gone wrong or elsewhere."""
    opened: list[Page] = []
    browser.complaints()  # whatever the test before has left
    browser.requested()

    def _open(
        broker: RunningBroker,
        size: tuple[int, int] = WIDE,
        *,
        dark: bool = False,
        still: bool = False,
    ) -> Page:
        browser.look_like(size, dark=dark, still=still)
        opened.append(Page(browser, broker))
        return opened[-1]

    yield _open
    complaints, requested = browser.complaints(), browser.requested()
    browser.driver.get("about:blank")  # it asks no longer
    assert complaints == []
    origins = tuple(f"{page.origin}/" for page in opened)
    assert [url for url in requested if not url.startswith(origins)] == []
    assert any(url.endswith("/console/main.js") for url in requested)


@pytest.fixture
def rules(browser: Browser, broker: RunningBroker) -> Browser:
    """A page that can import the console's modules, without polling."""
    assert broker.control_url is not None
    browser.driver.get(broker.control_url.rstrip("/") + "/v1/clock")
    return browser
