"""A headless browser, controlled through its driver.

Owns finding Chromium and its driver on this machine, the start flags and what tests need beyond
pages: its log, every request, the size and the colours of its window. It must never know brokers.
Invariant: nothing is downloaded, and it runs in a new folder, so that no run sees files of another.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from system_tests.harness.jars import ToolchainMissing
from system_tests.harness.waiting import PATIENCE_S

FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
WIDE: Final = (1280, 800)


class Browser:
    """One browser with one page."""

    def __init__(self, folder: Path) -> None:
        program, driver = _found("chromium"), _found("chromedriver")
        options = webdriver.ChromeOptions()
        options.binary_location = program
        for flag in (*FLAGS, f"--user-data-dir={folder}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options, Service(driver))
        self.driver.set_script_timeout(PATIENCE_S)
        self.look_like()

    def look_like(
        self, size: tuple[int, int] = WIDE, *, dark: bool = False, still: bool = False
    ) -> None:
        """Give the window a size, and its system a colour scheme and whether things may move."""
        width, height = size
        self._command(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        motion = {"name": "prefers-reduced-motion", "value": "reduce" if still else ""}
        self._command("Emulation.setEmulatedMedia", {"features": [scheme, motion]})

    def run(self, script: str, *arguments: Any) -> Any:
        """Return the result of an async function's body in the page."""
        # A function of its own for each, as what `import()` gives can only be waited for.
        wrapped = (
            "const [...given] = arguments; const done = given.pop();"
            f"(async (...args) => {{ {script} }})(...given)"
            ".then((value) => done({ value }), (error) => done({ error: String(error) }));"
        )
        outcome = self.driver.execute_async_script(wrapped, *arguments)
        assert "error" not in outcome, outcome["error"]
        return outcome.get("value")

    def complaints(self) -> list[str]:
        """Return log messages of the page, or of the browser about it, since the last call."""
        return [entry["message"] for entry in self._log("browser")]

    def requested(self) -> set[str]:
        """Return every address that was requested since the last call."""
        messages = (json.loads(entry["message"])["message"] for entry in self._log("performance"))
        return {
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        }

    def close(self) -> None:
        self.driver.quit()

    def _log(self, kind: str) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self.driver.get_log(kind)  # type: ignore[no-untyped-call]
        return entries

    def _command(self, name: str, parameters: dict[str, Any]) -> None:
        self.driver.execute_cdp_cmd(name, parameters)


def _found(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise ToolchainMissing(f"needs {program}, which isn't on this machine's PATH")
    return path
