from __future__ import annotations

import json

from minibroker.lab.checker.report import EXAMPLES_MAX
from tests.lab.checker.written import poll, report, send

A = "orders-0"


def test_report_of_a_clean_history_says_valid() -> None:
    text = str(report(send(0, (A, 1, 0)), poll(1, {A: [(0, 1)]})))
    assert text == "2 operations (2 ok), 1 records sent, 1 records polled\n\nvalid"


def test_report_names_lines_and_client_of_an_anomaly() -> None:
    result = report(
        send(0, (A, 1, 0), (A, 2, 1)), poll(1, {A: [(1, 2)]}), clients={"0": "librdkafka 2.11"}
    )
    assert "lost-write: 1 case: " in str(result)
    assert (
        "value 1 of orders-0 at offset 0 was not polled; line 3 sent it and was acknowledged, and "
        "line 5 polled offset 1 [line 3: librdkafka 2.11]" in str(result)
    )
    assert str(result).endswith("invalid: lost-write")


def test_examples_are_bounded_and_all_cases_are_counted() -> None:
    number = EXAMPLES_MAX + 5
    result = report(
        send(0, *((A, value, value) for value in range(number + 1))),
        poll(1, {A: [(number, number)]}),
    )
    assert result.counts == {"lost-write": number}
    assert len(result.examples["lost-write"]) == EXAMPLES_MAX
    assert "... and 5 more" in str(result)


def test_allowed_anomaly_leaves_a_report_valid() -> None:
    result = report(send(0, (A, 1, 0)), final_polls=False)
    assert result.valid
    assert result.allowed == {"unseen": 1}
    assert "allowed: unseen: 1 case (without final polls)" in str(result)


def test_json_of_a_report_has_every_anomaly_with_examples() -> None:
    result = report(send(0, (A, 1, 0), (A, 2, 1)), poll(1, {A: [(1, 2)]}))
    document = json.loads(json.dumps(result.to_json()))
    assert document["valid"] is False
    assert document["operations"] == {"ok": 2}
    [row] = document["anomalies"]
    assert (row["name"], row["count"]) == ("lost-write", 1)
    assert row["examples"][0]["lines"] == [3, 5]
