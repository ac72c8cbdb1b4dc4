from __future__ import annotations

import json
from pathlib import Path

import pytest

from minibroker.pipeline.watch.alerts import (
    FIELDS,
    VERSION,
    Alert,
    Rule,
    State,
    Subject,
    as_json,
    describe,
    identity,
    line,
)

ROOT = Path(__file__).parents[3]
OVER = Alert(
    Subject(Rule.OVER, 1, "alice", "etl", "producer_byte_rate"),
    State.RAISED, 1_795_000_020, 10, 3, 0.93, 0.8,
)  # fmt: skip


def test_alert_is_one_line_of_json_with_all_fields() -> None:
    text = as_json(OVER)
    assert "\n" not in text
    found = json.loads(text)
    assert list(found) == list(FIELDS)
    assert found["version"] == VERSION
    assert found["time_us"] == 1_795_000_030_000_000
    assert (found["rule"], found["state"], found["broker"]) == ("over", "raised", 1)
    assert (found["user"], found["client_id"]) == ("alice", "etl")
    assert (found["value"], found["limit"]) == (0.93, 0.8)
    assert found["id"] == identity(OVER)


@pytest.mark.parametrize(
    "other",
    [
        OVER._replace(start_s=1_795_000_030),
        OVER._replace(state=State.CLEARED),
        *(
            OVER._replace(subject=OVER.subject._replace(**change))
            for change in (
                {"rule": Rule.THROTTLED}, {"broker": 2}, {"user": "bob"}, {"client_id": ""},
                {"quota": "consumer_byte_rate"},
            )
        ),
    ],
)  # fmt: skip
def test_different_alerts_have_different_ids(other: Alert) -> None:
    assert identity(other) != identity(OVER)
    assert identity(OVER._replace(value=2.0)) == identity(OVER)


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("rule", list(Rule))
def test_every_alert_is_one_visible_line_that_names_the_broker(rule: Rule, state: State) -> None:
    alert = Alert(Subject(rule, 7, "u\x00\u202e", "c\n" * 9000), state, 0, 10, 3, 12.0, 0.3)
    assert line(alert).isprintable()
    assert len(line(alert)) < 300
    assert "broker 7" in line(alert)


def test_alert_text_reports_rule_and_duration() -> None:
    assert describe(OVER) == (
        "user alice, client etl on broker 1: producer_byte_rate above 80 % of the quota for 30 s, "
        "last 93 %"
    )
    assert line(OVER).startswith("2026-11-18 11:07:10  raised   user alice, client etl on")
    noisy = OVER._replace(subject=Subject(Rule.NOISY, 1, "ANONYMOUS", "etl"))
    assert describe(noisy).startswith("etl takes 93 % of broker 1, more than before")


def test_guide_lists_every_field_with_its_meaning() -> None:
    guide = (ROOT / "docs/guides/pipeline.md").read_text(encoding="utf-8")
    assert [
        name for name, meaning in FIELDS.items() if f"| `{name}` | {meaning} |" not in guide
    ] == []
