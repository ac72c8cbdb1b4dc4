"""Takes the pictures of a report in docs/: ``make screenshots``.

Owns the activity that the report shows, and what is in each picture. It must never assert anything:
tests do. Invariant: equal code of generator and report gives equal pictures.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from selenium.webdriver.common.by import By

from system_tests.harness.browser import Browser
from system_tests.harness.screenshots import DOCS, save

REPORT: Final = DOCS.parent / "minibroker/pipeline/report"
SIZE: Final = (1130, 1215)
EVENTS: Final = 200_000
PICTURES: Final = {"report.png": None, "report-throttles.png": "throttles"}
"""The section in a picture; None for the first screen of the page."""


def write_report(folder: Path) -> Path:
    """Write the report of generated activity."""
    table, page = folder / "activity", folder / "report.html"
    generate = ["system_tests.benchmarks.pipeline.generate", "--events", str(EVENTS)]
    report = ["minibroker", "pipeline", "report", "--into", str(page)]
    for command in (generate, report):
        subprocess.run([sys.executable, "-m", *command, "--table", str(table)], check=True)
    return page


def seen(browser: Browser, section: str | None) -> bytes:
    """Return what is visible, or a whole section."""
    if section is None:
        return browser.driver.get_screenshot_as_png()
    return browser.driver.find_element(By.ID, section).screenshot_as_png


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        page = write_report(folder)
        browser = Browser(folder / "profile")
        try:
            browser.look_like(SIZE, still=True)
            browser.driver.get(page.as_uri())
            for picture, section in PICTURES.items():
                save(seen(browser, section), DOCS / picture, REPORT)
        finally:
            browser.close()


if __name__ == "__main__":
    main()
