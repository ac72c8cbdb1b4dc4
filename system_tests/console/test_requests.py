"""The view of the requests: recorded on request, filtered, with the frames of a selected one."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer

from system_tests.console.conftest import Limited, OpenPage
from system_tests.console.test_rules import call
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.browser import Browser
from system_tests.harness.waiting import PATIENCE_S

pytestmark = pytest.mark.minibroker

ROW = "#requests tbody tr"


def produce(broker: RunningBroker, client_id: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": client_id})
    producer.produce("orders", b"x")
    assert producer.flush(PATIENCE_S) == 0


def test_requests_are_recorded_filtered_and_dissected(
    limited: Limited, open_page: OpenPage
) -> None:
    broker = limited()
    page = open_page(broker)
    page.find("#tab-requests").click()
    page.wait(lambda: "The journal is off" in page.text("#requests"), "the view to be drawn")
    page.find("#requests-record").click()
    page.wait(lambda: page.text("#requests-record") == "Stop recording", "the journal to be on")
    produce(broker, "<b>shop</b>")
    page.wait(lambda: page.count(f"{ROW}.request"), "requests to be drawn")
    produced = f"{ROW}.request"

    def names() -> list[str]:
        return page.texts(f"{produced} button")

    page.wait(lambda: any(name.startswith("Produce v") for name in names()), "the Produce request")
    assert "<b>shop</b>" in page.texts(f"{produced} td:nth-child(2)"), "its name is no HTML"
    page.find("[name=api]").send_keys("Produce")
    page.wait(
        lambda: {name.split()[0] for name in names()} == {"Produce"}, "other requests to disappear"
    )
    page.find(f"{produced} button").click()
    page.wait(lambda: "error_code: 0 NONE" in page.text("#frames"), "the dissected frames")
    assert "name: 'orders'" in page.text("#frames")
    page.find("#requests-record").click()
    page.wait(lambda: page.text("#requests-record") == "Record", "the journal to be off")


def entry(sequence: int, kind: str, connection: str | None = "5", **fields: Any) -> dict[str, Any]:
    known = {"sequence": sequence, "kind": kind, "connection": connection, "clock_ms": 0}
    known |= {"client_id": "c", "address": "h:1", "role": "processor-0", "api": "Fetch"}
    known |= {"version": 4, "throttle_time_ms": None, "stages": {}, "frame_bytes": 10}
    return {**known, "details": {}, **fields}


def page_of(*entries: dict[str, Any], last: int = 0) -> dict[str, Any]:
    return {"entries": list(entries), "last": last, "dropped": 0, "has_more": False}


def test_response_is_in_the_row_of_its_request(rules: Browser) -> None:
    response = entry(3, "response", stages={"total": 2.5, "queue": 1}, throttle_time_ms=7)
    pages = [page_of(entry(1, "request"), entry(2, "request", "6")), page_of(response, last=9)]
    scene: Any = {"rows": [], "after": 0, "dropped": 0}
    for page in pages:
        scene = call(rules, "trace", "advance", scene, page)
    assert [(row["request"], row["response"]) for row in scene["rows"]] == [(1, 3), (2, None)]
    assert (scene["rows"][0]["total"], scene["rows"][0]["throttle"]) == (2.5, 7)
    assert scene["after"] == 9


def test_rows_are_bounded(rules: Browser) -> None:
    entries = [entry(number, "connection_opened") for number in range(1, 400)]
    scene: Any = {"rows": [], "after": 0, "dropped": 0}
    rows = call(rules, "trace", "advance", scene, page_of(*entries))["rows"]
    assert (len(rows), rows[-1]["key"]) == (300, 399)


def test_lost_entries_have_a_row_and_end_the_requests_before_it(rules: Browser) -> None:
    details = {"entries": 7, "reason": "process_ended", "since_ms": 0}
    loss = entry(9, "lost", None, role="worker-0", details=details)
    page = page_of(entry(1, "request"), loss, entry(10, "response"))
    scene: Any = {"rows": [], "after": 0, "dropped": 0}
    rows = call(rules, "trace", "advance", scene, page)["rows"]
    assert [(row["request"], row["response"]) for row in rows] == [
        (1, None),
        (None, None),
        (None, 10),
    ]
    assert rows[1]["text"] == "7 entries lost: the process ended before it handed them over"
    assert rows[1]["subject"] == "worker-0"
