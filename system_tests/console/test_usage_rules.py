"""Views of answers about quotas, rule by rule: rows, lines, and throttled clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from system_tests.console.test_rules import call
from system_tests.harness.browser import Browser

pytestmark = pytest.mark.minibroker


def use(client: str = "c", share: float | None = 0.5, **others: Any) -> dict[str, Any]:
    return {
        "type": "produce",
        "user": "",
        "client_id": client,
        "rate": 1000 * (share or 1),
        "quota": None if share is None else 1000,
        "share": share,
        "path": None,
        "throttle_ms": None,
        "throttled_ago_ms": None,
        "last_throttle_ms": None,
        **others,
    }


def throttle(number: int, ago_ms: int = 0, client: str = "c", delay: int = 70) -> dict[str, Any]:
    return {
        "number": number,
        "ago_ms": ago_ms,
        "type": "produce",
        "user": "",
        "client_id": client,
        "api": "Produce",
        "throttle_ms": delay,
    }


def answer(
    uses: Sequence[dict[str, Any]] = (), throttles: Sequence[dict[str, Any]] = (), total: int = 0
) -> dict[str, Any]:
    """Return a broker's answer; throttles are newest first."""
    return {
        "counting": True,
        "uses": list(uses),
        "uses_total": max(total, len(uses)),
        "throttles": list(throttles),
    }


SCENES = """
    const { advance, UNKNOWN } = await import("/console/usage.js");
    let scene = UNKNOWN;
    return args[0].map(([now, answer]) => {
        scene = advance(scene, answer, now);
        return { ...scene, lines: Object.fromEntries(scene.lines) };
    });
"""


def scenes(rules: Browser, *answers: tuple[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """The scene after each answer, which comes at a time."""
    found: list[dict[str, Any]] = rules.run(SCENES, answers)
    return found


def test_usage_list_shows_highest_shares_of_quota(rules: Browser) -> None:
    crowd = [use(f"c{n}", n / 500) for n in range(1000)] + [use("free", None)]
    (scene,) = scenes(rules, (0, answer(crowd, total=1500)))
    assert len(scene["uses"]) == 40
    assert min(each["share"] for each in scene["uses"]) >= 1.92
    assert (scene["left"], scene["unbounded"], scene["unlisted"]) == (960, 1, 499)
    result = call(rules, "words", "rest", scene)
    parts = "960 with a lower share of their quota, 1 without a quota, 499 less recently active"
    assert parts in result


def test_small_changes_of_use_change_no_order(rules: Browser) -> None:
    scene, same, other = scenes(
        rules,
        (0, answer([use("a", 0.51), use("b", 0.52)])),
        (500, answer([use("b", 0.52), use("a", 0.49)])),
        (900, answer([use("b", 0.72), use("a", 0.49)])),
    )
    order = [[each["client_id"] for each in at["uses"]] for at in (scene, same, other)]
    assert order == [["a", "b"], ["a", "b"], ["b", "a"]]


def test_names_that_were_cut_alike_are_one(rules: Browser) -> None:
    (scene,) = scenes(rules, (0, answer([use(), use()])))
    assert len(scene["uses"]) == 1


def test_throttle_is_drawn_once_for_its_duration(rules: Browser) -> None:
    began = throttle(7, 10, delay=900)
    held = use(throttled_ago_ms=500, last_throttle_ms=900)
    over = use(throttled_ago_ms=1000, last_throttle_ms=900)
    first, flash, still, gone = scenes(
        rules,
        (0, answer([use()], [throttle(6, 99_000)])),
        (500, answer([use()], [began, throttle(6, 99_500)])),
        (1000, answer([held], [began])),
        (1500, answer([over], [began])),
    )
    shown = [
        (at["uses"][0]["throttled"], at["uses"][0]["again"], at["held"])
        for at in (first, flash, still, gone)
    ]
    assert shown == [(None, False, 0), (900, True, 1), (900, False, 1), (None, False, 0)]


def test_throttle_stays_listed_after_broker_drops_it(rules: Browser) -> None:
    storm = [throttle(number, client="loud") for number in range(99, 3, -1)]
    *_, scene, later, restarted = scenes(
        rules,
        (0, answer([], [throttle(2, 6000), throttle(1, 7000)])),
        (500, answer([], storm)),
        (8000, answer([], [{**each, "ago_ms": 9000} for each in storm])),
        (9000, answer([], [throttle(1, client="new")])),
    )
    quiet = [("loud", 96), ("c", 2)]
    assert [(each["client_id"], each["times"]) for each in scene["throttles"]] == quiet
    assert [each["ago_ms"] for each in later["throttles"]] == [9000, 14_000]
    assert [each["client_id"] for each in restarted["throttles"]] == ["new"]


def test_line_is_two_minutes_long_and_forgotten_with_its_counter(rules: Browser) -> None:
    steps = [(at, answer([use()])) for at in range(0, 200_000, 500)]
    *_, scene, gone = scenes(rules, *steps, (200_000, answer()))
    ((_, line),) = scene["lines"].items()
    assert 115 <= len(line) <= 121
    assert gone["lines"] == {}


def test_throttle_between_two_points_of_a_line_is_kept(rules: Browser) -> None:
    held = use(throttled_ago_ms=0, last_throttle_ms=100)
    *_, scene = scenes(
        rules, (0, answer([use()])), (300, answer([held])), (600, answer([use(share=0.7)]))
    )
    ((_, line),) = scene["lines"].items()
    assert line == [{"at": 0, "rate": 700, "throttled": True}]


def test_quota_line_has_gaps_where_no_data_exists(rules: Browser) -> None:
    line = [
        {"at": 60_000, "rate": 0, "throttled": False},
        {"at": 61_000, "rate": 1000, "throttled": True},
        {"at": 90_000, "rate": 500, "throttled": False},
    ]
    drawn = call(rules, "usage", "trace", line, 1000, 120_000)
    assert drawn["bound"] == 6.3
    assert drawn["use"] == "M60 29.5L61 6.3M90 17.9L120 17.9"
    assert drawn["throttled"] == "M61 30h1"
    assert call(rules, "usage", "trace", [], 0, 0)["use"] == ""


EXPLAINED = """
    const { Explained } = await import("/console/quotas.js");
    const root = document.createElement("div");
    new Explained(root).show(...args);
    return [...root.children].filter(({ hidden }) => !hidden).map(({ textContent }) => textContent);
"""


def test_unexplained_throttle_reports_reason(rules: Browser) -> None:
    assert rules.run(EXPLAINED, use("loud"), None, "no throttle 3 is kept") == [
        "bytes produced of client-id loud",
        "No explanation: no throttle 3 is kept",
    ]


def test_verdict_describes_current_or_past_throttle(rules: Browser) -> None:
    def verdict(throttle: dict[str, Any] | None, throttle_ms: int) -> Any:
        explained = {"throttle": throttle, "throttle_ms": throttle_ms}
        return call(rules, "words", "verdict", explained)

    assert verdict(None, 0) == "A request now would not wait"
    assert verdict(None, 9500) == "A request now would wait 9.5 s"
    assert verdict({"api": "Fetch", "ago_ms": 12_000}, 9500) == "Fetch waited 9.5 s, 12 s ago"


def test_sampled_usage_is_put_before_what_is_known(rules: Browser) -> None:
    key = '["produce","","c"]'
    past: dict[str, Any] = {"type": "produce", "user": "", "client_id": "c"}
    past |= {"rates": [None, 1.5, 2.5, 3.5], "throttled": [False, False, True, False]}
    history = {"interval_ms": 2000, "sampled_ago_ms": 500, "uses": [past]}
    known: dict[str, Any] = {"newest": None, "throttles": [], "lines": {}}
    script = """const { recall } = await import("/console/usage.js");
        const known = { ...args[0], lines: new Map(args[1]) };
        return [...recall(known, args[2], 10_000).lines]"""
    first = rules.run(script, known, [], history)
    points = [(point["at"], point["rate"], point["throttled"]) for point in first[0][1]]
    assert first[0][0] == key
    assert points == [(5500, 1.5, False), (7500, 2.5, True), (9500, 3.5, False)]
    present = [{"at": 9000, "rate": 9, "throttled": False}]
    again = rules.run(script, known, [[key, present]], history)
    assert [point["at"] for point in again[0][1]] == [5500, 7500, 9000]
    later = rules.run(script.replace("10_000", "128_000"), known, [], history)
    assert [point["at"] for point in later[0][1]] == [123_500, 125_500, 127_500]
