"""."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.pipeline.watch import rules as module
from minibroker.pipeline.watch.rules import (
    FIELDS,
    NEIGHBOURS_MAX,
    RISE,
    VERSION,
    WARM_UP_INTERVALS,
    Alert,
    Checked,
    ClientUsage,
    Rule,
    Rules,
    State,
    Subject,
    WatchInterval,
    WatchLimits,
    as_json,
    describe,
    identity,
    line,
)

LIMITS = WatchLimits(over=0.8, intervals=3, noisy=0.3)
EVERY_S = 10
Changes = list[tuple[int, Rule, State]]


def watch(intervals: Sequence[WatchInterval], rules: Rules | None = None) -> list[Alert]:
    rules = rules or Rules(EVERY_S, LIMITS)
    return [alert for interval in intervals for alert in rules.evaluate(interval)]


def changes(alerts: Sequence[Alert]) -> Changes:
    """Which interval said what."""
    return [(each.start_s // EVERY_S, each.subject.rule, each.state) for each in alerts]


def used(*shares: float | None) -> list[WatchInterval]:
    """Return intervals of an entity with these shares of its quota; None is an interval without
    it.
    """
    return [
        WatchInterval(
            start_s=n * EVERY_S,
            checked=[]
            if share is None
            else [Checked(1, "alice", "", "producer_byte_rate", share * 1000, 1000, 0, 0)],
        )
        for n, share in enumerate(shares)
    ]


def throttled_intervals(*throttled: int) -> list[WatchInterval]:
    return [
        WatchInterval(
            start_s=n * EVERY_S,
            checked=[Checked(1, "", "etl", "request_percentage", None, 25, each, 40 * each)],
        )
        for n, each in enumerate(throttled)
    ]


def test_rate_near_quota_is_raised_after_consecutive_intervals() -> None:
    alerts = watch(used(0.9, 0.9, 0.5, 0.9, 0.9, 0.85, 0.9))
    assert changes(alerts) == [(5, Rule.OVER, State.RAISED)]
    assert alerts[0].value == pytest.approx(0.85)
    assert alerts[0].limit == 0.8
    assert alerts[0].intervals == 3
    assert alerts[0].subject == (Rule.OVER, 1, "alice", "", "producer_byte_rate")


def test_alert_is_cleared_after_consecutive_intervals_below() -> None:
    alerts = watch(used(0.9, 0.9, 0.9, 0.75, 0.75, 0.75, 0.75, 0.5, 0.75, 0.5, 0.5, 0.5, 0.5))
    assert changes(alerts) == [(2, Rule.OVER, State.RAISED), (11, Rule.OVER, State.CLEARED)]


def test_alternating_rate_does_not_flap() -> None:
    assert changes(watch(used(*[0.9, 0.5] * 30))) == []
    assert changes(watch(used(0.9, 0.9, 0.9, *[0.5, 0.9] * 30))) == [(2, Rule.OVER, State.RAISED)]


def test_interval_without_entity_counts_as_below() -> None:
    alerts = watch(used(0.9, 0.9, None, 0.9, 0.9, 0.9, None, None, None))
    assert changes(alerts) == [(5, Rule.OVER, State.RAISED), (8, Rule.OVER, State.CLEARED)]


def test_intervals_without_any_event_are_below_too() -> None:
    first, later = used(0.9, 0.9, 0.9), WatchInterval(start_s=1_000_000 * EVERY_S)
    alerts = watch([*first, later])
    assert [each.state for each in alerts] == [State.RAISED, State.CLEARED]
    assert watch([*first, WatchInterval(start_s=5 * EVERY_S)])[1:] != []
    assert watch([*first, WatchInterval(start_s=4 * EVERY_S)])[1:] == []


def test_evaluated_interval_is_not_evaluated_again() -> None:
    rules = Rules(EVERY_S, LIMITS)
    intervals = used(0.9, 0.9, 0.9)
    assert len(watch(intervals, rules)) == 1
    assert watch(intervals, rules) == []


def test_throttle_alert_reports_longest_throttle() -> None:
    alerts = watch(throttled_intervals(1, 2, 3, 4, 0, 0, 0))
    assert changes(alerts) == [
        (2, Rule.THROTTLED, State.RAISED),
        (6, Rule.THROTTLED, State.CLEARED),
    ]
    assert alerts[0].value == 120


def test_zero_quota_has_no_usage_share() -> None:
    checked = [Checked(1, "alice", "", "producer_byte_rate", 5.0, 0.0, 0, 0)]
    assert watch([WatchInterval(start_s=n * EVERY_S, checked=checked) for n in range(5)]) == []


def test_dropped_events_raise_alert_at_once() -> None:
    dropped = [
        WatchInterval(start_s=n * EVERY_S, dropped={2: each}) for n, each in enumerate([7, 0, 0])
    ]
    alerts = watch([*dropped, WatchInterval(start_s=30)])
    assert changes(alerts) == [(0, Rule.DROPPING, State.RAISED), (3, Rule.DROPPING, State.CLEARED)]
    assert alerts[0].value == 7
    assert alerts[0].subject.broker == 2


# Neighbours ------------------------------------------------------------------------------------


def whole(parties: Sequence[ClientUsage]) -> ClientUsage:
    """All of them together."""
    sums = zip(*(each[3:] for each in parties), strict=True)
    return ClientUsage(1, "", "", *(sum(column) for column in sums))


def shared(*parties: tuple[str, int, int], served_ns: int = 1000) -> Callable[[int], WatchInterval]:
    """An interval in which these clients worked the broker and moved bytes."""
    found = [
        ClientUsage(1, "ANONYMOUS", name, 100, worked * 10**6, moved * 10**5, 100 * served_ns)
        for name, worked, moved in parties
    ]
    total = whole(found)
    return lambda n: WatchInterval(start_s=n * EVERY_S, parties=found, totals={1: total})


QUIET = shared(("etl", 500, 500), ("app", 500, 500))


def neighbours(*kinds: Callable[[int], WatchInterval]) -> list[Alert]:
    return watch([kind(n) for n, kind in enumerate(kinds)])


def test_new_heavy_client_slowing_others_raises_noisy_alert() -> None:
    noise = shared(("etl", 500, 500), ("app", 500, 500), ("new", 900, 0), served_ns=2000)
    alerts = neighbours(*[QUIET] * 5, noise, noise, *[QUIET] * 3)
    assert changes(alerts) == [(5, Rule.NOISY, State.RAISED), (9, Rule.NOISY, State.CLEARED)]
    assert alerts[0].subject == (Rule.NOISY, 1, "ANONYMOUS", "new", "")
    assert alerts[0].value == pytest.approx(900 / 1900)


def test_byte_quotas_are_replayed_like_request_time() -> None:
    noise = shared(("etl", 500, 500), ("app", 500, 500), ("new", 1, 9000), served_ns=2000)
    assert changes(neighbours(*[QUIET] * 5, noise)) == [(5, Rule.NOISY, State.RAISED)]


def test_client_grown_from_small_share_counts_as_new() -> None:
    small = shared(("etl", 500, 500), ("app", 500, 500), ("new", 50, 50))
    noise = shared(("etl", 500, 500), ("app", 500, 500), ("new", 900, 0), served_ns=2000)
    assert changes(neighbours(*[small] * 5, noise)) == [(5, Rule.NOISY, State.RAISED)]


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param([QUIET] * 5 + [shared(("etl", 9000, 500), ("app", 500, 500), served_ns=2000)],
                     id="large client is not new"),
        pytest.param([QUIET] * 5 + [shared(("etl", 500, 500), ("app", 500, 500), ("new", 900, 0))],
                     id="latency is unchanged"),
        pytest.param([QUIET] * 5 + [shared(("etl", 500, 500), ("app", 500, 500), ("new", 90, 0),
                                           served_ns=9000)], id="the new one takes little"),
        pytest.param([QUIET] * (WARM_UP_INTERVALS - 1) + [shared(("etl", 500, 500), ("new", 900, 0),
                                                    served_ns=9000)], id="nothing is usual yet"),
        pytest.param([QUIET] * 5 + [shared(("new", 900, 0), served_ns=9000)],
                     id="there are no others"),
        pytest.param([QUIET] * 5 + [shared(("etl", 9, 9), ("new", 400, 90), served_ns=9000)],
                     id="a large part of little"),
    ],
)  # fmt: skip
def test_unaffecting_clients_raise_no_noisy_alert(
    kinds: list[Callable[[int], WatchInterval]],
) -> None:
    assert neighbours(*kinds) == []


def test_noisy_alert_requires_latency_rise_above_limit() -> None:
    def noise(served_ns: float) -> Callable[[int], WatchInterval]:
        return shared(("etl", 500, 5), ("app", 500, 5), ("new", 900, 0), served_ns=int(served_ns))

    assert neighbours(*[QUIET] * 9, noise(1000 * RISE - 1)) == []
    assert neighbours(*[QUIET] * 9, noise(1000 * RISE + 1)) != []


# What is remembered ----------------------------------------------------------------------------


def test_track_below_limit_expires() -> None:
    rules = Rules(EVERY_S, LIMITS)
    watch([*used(0.9, 0.9, 0.9, 0.1, 0.1, 0.1)], rules)
    assert rules.tracks == 0
    watch([WatchInterval(start_s=99_990, checked=used(0.9)[0].checked), *used(0.1)], rules)
    assert rules.tracks == 1
    watch([WatchInterval(start_s=100_000)], rules)
    assert rules.tracks == 0


def test_no_more_is_remembered_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRACKS_MAX", 10)
    rules = Rules(EVERY_S, LIMITS)
    crowd = [Checked(1, f"u{n}", "", "producer_byte_rate", 9.0, 10.0, 1, 5) for n in range(50)]
    alerts = watch([WatchInterval(start_s=n * EVERY_S, checked=crowd) for n in range(4)], rules)
    assert rules.tracks == 10
    assert len(alerts) == 10


def test_shares_are_kept_of_the_largest_only() -> None:
    rules = Rules(EVERY_S, LIMITS)
    for n in range(5):
        names = [(f"c{n}-{k}", 10 + k, 10) for k in range(NEIGHBOURS_MAX)]
        watch([shared(*names)(n)], rules)
    ((_, _, _, shares),) = rules.saved_state()["usual"]
    assert len(shares) == NEIGHBOURS_MAX


def test_state_of_other_interval_length_is_discarded() -> None:
    rules = Rules(EVERY_S, LIMITS)
    watch(used(0.9, 0.9), rules)
    other = Rules(60, LIMITS)
    other.restore(rules.saved_state())
    assert (other.tracks, other.last_s) == (0, None)


@st.composite
def histories(draw: st.DrawFn) -> list[WatchInterval]:
    starts = sorted(draw(st.sets(st.integers(0, 60), max_size=40)))
    rates = st.sampled_from([None, 0.0, 0.5, 0.75, 0.8, 1.5])
    many = st.integers(0, 3)
    found = []
    for start in starts:
        checked = [
            Checked(1, user, "", "producer_byte_rate", draw(rates), 1.0, draw(many), 10)
            for user in draw(st.sets(st.sampled_from(["a", "b"])))
        ]
        parties = [
            ClientUsage(1, "", client, 1 + draw(many), draw(many), draw(many), draw(many) * 1000)
            for client in draw(st.sets(st.sampled_from("xyz")))
        ]
        found.append(
            WatchInterval(start_s=start * EVERY_S, checked=checked, parties=parties,
                     totals={1: whole(parties)} if parties else {}, dropped={1: draw(many)})
        )  # fmt: skip
    return found


@given(histories())
def test_raised_alert_is_cleared_before_raised_again(history: list[WatchInterval]) -> None:
    last: dict[object, State] = {}
    for alert in watch(history):
        assert last.get(alert.subject, State.CLEARED) != alert.state
        last[alert.subject] = alert.state


@given(histories(), st.data())
def test_restart_between_intervals_does_not_change_alerts(
    history: list[WatchInterval], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(history)))
    before = Rules(EVERY_S, LIMITS)
    alerts = watch(history[:cut], before)
    after = Rules(EVERY_S, LIMITS)
    after.restore(json.loads(json.dumps(before.saved_state())))
    assert alerts + watch(history[cut:], after) == watch(history)


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
