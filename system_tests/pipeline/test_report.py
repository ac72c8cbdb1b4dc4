"""The report in a browser: the command's output, from a disk, without a network."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from minibroker.lab.activity.events import VERSION
from minibroker.pipeline.activity_table import ACTIVITY
from minibroker.pipeline.report import formats
from system_tests.harness.browser import WIDE, Browser
from system_tests.harness.waiting import SPARK_PATIENCE_S, wait_until

pytestmark = [pytest.mark.minibroker, pytest.mark.java]

HOSTILE = "</td><script>document.title = 'taken'</script><img src=//example.invalid onerror=1>"
START_US = 1_795_000_020_000_000
PHONE = (390, 844)


def events() -> Iterator[dict[str, Any]]:
    """An hour of 60 clients, some of which were held; one is hostile."""
    random = Random(7)
    for sequence in range(4000):
        client = min(int(random.paretovariate(0.6)), 60)
        yield {
            "version": VERSION, "kind": "request", "broker": sequence % 3, "sequence": sequence,
            "time_us": START_US + sequence * 900_000, "sample": 1.0, "user": "ANONYMOUS",
            "client_id": HOSTILE if client == 2 else f"client-{client}",
            "request_bytes": random.randrange(100_000), "response_bytes": random.randrange(9000),
            "queue_ns": 9000, "network_ns": 40_000, "io_ns": random.randrange(9_000_000),
            "total_ns": random.randrange(10**6, 10**8), "error_code": 0,
            "throttle_ms": random.choice([0, 0, 0, 400]) if client < 9 else 0,
        }  # fmt: skip
    yield {"version": VERSION, "kind": "dropped", "broker": 0, "sequence": 4001,
           "time_us": START_US, "dropped": 17}  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page that the command made of a table."""
    folder = tmp_path_factory.mktemp("report")
    part = folder / "activity" / "hour=2026-11-18-11" / "bucket=0"
    part.mkdir(parents=True)
    schema = to_arrow_schema(ACTIVITY)
    rows = [{name: each.get(name) for name in schema.names} for each in events()]
    pq.write_table(pa.Table.from_pylist(rows, schema), part / "part.parquet")
    command = [sys.executable, "-m", "minibroker", "pipeline", "report", "--master", "local[1]"]
    command += ["--table", str(folder / "activity"), "--into", str(folder / "page.html")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SPARK_PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "4,000 events of 3 brokers, 17 dropped; " in done.stdout
    return folder / "page.html"


@pytest.fixture
def page(browser: Browser, written: Path) -> Iterator[Browser]:
    """The open page; at the end there must be no error and no external request."""
    browser.complaints()
    browser.requested()
    browser.look_like(WIDE)
    browser.driver.get(written.as_uri())
    yield browser
    assert browser.complaints() == []
    assert {each.split("?")[0] for each in browser.requested()} <= {written.as_uri(), "data:,"}
    browser.driver.get("about:blank")


def texts(page: Browser, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(args[0])].map((each) => each.innerText)"
    return [" ".join(text.split()) for text in page.run(script, selector)]


def test_report_shows_the_figures_of_the_table(page: Browser) -> None:
    requests = [each for each in events() if each["kind"] == "request"]
    worked: Counter[str] = Counter()
    for each in requests:
        worked[each["client_id"]] += each["network_ns"] + each["io_ns"]
    by_work = sorted(worked, key=lambda name: (-worked[name], name))
    first = [each for each in requests if each["client_id"] == by_work[0]]
    cells = texts(page, "#entities-table tbody tr:first-child > *")
    assert cells[0] == by_work[0]
    assert cells[2] == formats.count(len(first))
    assert cells[3] == formats.amount(sum(each["request_bytes"] for each in first), "B")
    assert cells[6] == formats.duration(sum(each["throttle_ms"] for each in first))
    assert texts(page, "#entities-table tr.rest th") == [f"{len(worked) - 25} others"]
    tiles = " ".join(texts(page, "#tiles"))
    assert "Requests 4,000" in tiles
    assert (
        f"Bytes in {formats.amount(sum(each['request_bytes'] for each in requests), 'B')}" in tiles
    )
    assert "dropped 17" in tiles


def _slots(start_ms: int, throttle_ms: int) -> range:
    """The half minutes in which a throttle lasts."""
    return range(start_ms // 30_000, (start_ms + throttle_ms - 1) // 30_000 + 1)


def test_throttle_map_has_cell_per_throttled_entity_and_slot(page: Browser) -> None:
    last = max(each["time_us"] for each in events()) // 30_000_000
    held = {
        (each["client_id"], slot)
        for each in events()
        if each.get("throttle_ms")
        for slot in _slots(each["time_us"] // 1000, each["throttle_ms"])
        if slot <= last
    }
    script = """return document.querySelectorAll("#throttles svg.wide path[aria-label]").length"""
    assert page.run(script) == len(held)


def test_hostile_name_is_text(page: Browser) -> None:
    assert page.driver.title.startswith("Broker activity")
    assert page.run("return document.querySelectorAll('img, script').length") == 1
    assert any("<script>" in text for text in texts(page, "#entities-table th"))


def test_pointed_bucket_shows_tooltip(page: Browser) -> None:
    script = """
        const mark = document.querySelector("#usage svg.wide .pointed_marks path");
        const { left, top } = mark.getBoundingClientRect();
        const at = { bubbles: true, clientX: left + 2, clientY: top + 2 };
        mark.dispatchEvent(new PointerEvent("pointermove", at));
        const tip = document.querySelector(".tip");
        return [tip.hidden, tip.innerText];
    """
    hidden, said = page.run(script)
    assert not hidden
    assert re.match(r"2026-11-18 11:07:00\n[\d.]+ kB/s in total\n", said)


def test_column_sorts_and_the_rest_stays_last(page: Browser) -> None:
    def column() -> list[float]:
        script = """return [...document.querySelectorAll("#entities-table tbody tr:not(.rest)")]
            .map((row) => Number(row.children[10].dataset.v))"""
        return list(page.run(script))

    page.run("document.querySelectorAll('#entities-table thead button')[9].click()")
    wait_until(lambda: column() == sorted(column(), reverse=True), "the rows to be sorted")
    page.run("document.querySelectorAll('#entities-table thead button')[9].click()")
    assert column() == sorted(column())
    last = "return document.querySelector('#entities-table tbody').lastElementChild.className"
    assert page.run(last) == "rest"


@pytest.mark.parametrize("dark", [False, True])
def test_report_fits_phone_width(page: Browser, dark: bool) -> None:
    page.look_like(PHONE, dark=dark)
    width, visible = page.run(
        "const { scrollWidth, clientWidth } = document.documentElement;"
        "return [scrollWidth, clientWidth]"
    )
    assert width == visible <= PHONE[0]
    shown = """return [...document.querySelectorAll("svg.wide, svg.narrow")]
        .filter((each) => each.getBoundingClientRect().width).every((each) =>
            each.classList.contains("narrow"))"""
    assert page.run(shown)
    ground = page.run("return getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(14, 19, 20)" if dark else "rgb(244, 245, 242)")
