"""Rates in busy seconds: averaged as in a broker, and the same however the events are split."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibroker.pipeline import busy_rates, grouping
from minibroker.pipeline.busy_rates import (
    EVENTS_PER_PART,
    PARTS_MAX,
    PARTS_MIN,
    average,
    busy_seconds,
    part_count,
    rates_of_parts,
    serialized_series,
    series_of,
)
from minibroker.pipeline.quota_amounts import (
    IP,
    LEVELS,
    MUTATION,
    NAMES,
    PRODUCE,
    QUOTAS,
    UNITS,
    USER,
    USER_AND_CLIENT,
    Events,
)
from minibroker.pipeline.recommend import Policy
from tests.pipeline import reference_counts
from tests.pipeline.sample_events import Event, arrow, many, produced, request

Row = dict[str, Any]


def windows_of(policy: Policy) -> dict[str, tuple[int, int]]:
    return {quota: policy.windows_s(quota) for quota in QUOTAS}


def idle(seconds: float, user: str, size: int, **more: object) -> Event:
    """Bytes alone: no time is worked."""
    return produced(seconds, user, "c", size, checked_ns=0, late_ns=0, **more)


def rates(events: list[Event], policy: Policy, wanted: str = PRODUCE) -> dict[int, float]:
    """The rate in each second of a single entity, seconds modulo a minute."""
    seconds = busy_seconds(series_of(Events(arrow(events)), USER))
    found = average(seconds, windows_of(policy))
    of_quota = seconds.quotas[seconds.entities] == QUOTAS.index(wanted)
    return dict(
        zip((seconds.seconds[of_quota] % 60).tolist(), found[of_quota].tolist(), strict=True)
    )


def test_rate_is_that_of_ten_or_eleven_seconds() -> None:
    sizes = {0: 1000, 1: 500, 10: 200, 25: 70}
    events = [idle(at, "u", size) for at, size in sizes.items()]
    # At 10 s: 700 bytes in ten seconds, but 1700 in eleven.
    assert rates(events, Policy()) == {0: 100, 1: 150, 10: 1700 / 11, 25: 7}


def test_rate_is_over_the_windows_that_a_broker_is_set_to() -> None:
    events = [idle(at, "u", size) for at, size in {0: 1000, 1: 500, 3: 250, 5: 60}.items()]
    policy = Policy(window_num=3, window_s=2)
    # At 3 s: 1750 bytes in four seconds. At 5 s: 310 in four, but 1810 in six.
    assert rates(events, policy) == {0: 250, 1: 375, 3: 437.5, 5: 1810 / 6}
    assert Policy(window_num=1).windows_s(PRODUCE) == (1, 1)


def test_changes_of_topics_have_windows_of_their_own() -> None:
    changed = {0: 60, 7: 12, 30: 6}
    events = [
        request(at, "u", "c", mutations=number, mutations_refused=0, checked_ns=0, late_ns=0)
        for at, number in changed.items()
    ]
    events += [idle(at, "u", 1000) for at in changed]
    policy = Policy(mutation_window_num=3, mutation_window_s=3)
    # At 7 s: 12 in six seconds, but 72 in nine.
    assert rates(events, policy, MUTATION) == {0: 10, 7: 8, 30: 1}
    assert rates(events, Policy(), MUTATION) == {0: 6, 7: 7.2, 30: 0.6}
    assert rates(events, policy) == rates(events, Policy()) == {0: 100, 7: 200, 30: 100}


def one_by_one(
    events: list[Row], level: str, policy: Policy, percentiles: list[float]
) -> list[Row]:
    """The rates of each entity, event by event and second by second."""
    used: dict[tuple[Any, ...], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    throttled: dict[tuple[Any, ...], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for event in events:
        names = reference_counts.names(event)
        for counts in reference_counts.counts(event):
            for each in (level, IP):
                if event["sample"] is None or any(names[name] is None for name in LEVELS[each]):
                    continue
                known = [names[name] if name in LEVELS[each] else None for name in NAMES]
                key, second = (event["broker"], counts.quota, *known), event["time_us"] // 1_000_000
                used[key][second] += reference_counts.for_all(counts.amount, event)
                if counts.throttled_ms:
                    throttled[key][second] += reference_counts.for_all(1_000_000, event)
    found = []
    for key, amounts in used.items():
        busy = sorted(at for at in amounts if amounts[at] or throttled[key][at])
        averages = [
            max(
                sum(amounts[other] for other in busy if at - length < other <= at) / length
                for length in policy.windows_s(key[1])
            )
            / UNITS.get(key[1], 1)
            for at in busy
        ]
        if any(averages):
            found.append(
                {
                    **dict(zip(("broker", "quota", *NAMES), key, strict=True)),
                    "busy_s": len(busy),
                    "percentiles": pytest.approx(
                        np.percentile(averages, percentiles).tolist(), rel=1e-12
                    ),
                    "most": max(averages),
                    "throttled": sum(throttled[key].values()) / 1_000_000,
                }
            )
    return sorted(found, key=in_order)


def in_order(row: Row) -> str:
    return repr([row[name] for name in ("broker", "quota", *NAMES)])


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    count=st.integers(1, 80),
    size=st.integers(1, 70),
    parts=st.sampled_from([1, 2, 64]),
    level=st.sampled_from([USER, USER_AND_CLIENT]),
)
def test_rates_of_split_events_match_plain_loop(
    seed: int, count: int, size: int, parts: int, level: str
) -> None:
    events = list(many(count, seed, lasts_s=60))
    Random(seed).shuffle(events)
    table = arrow(events)
    tables = [table.slice(at, size) for at in range(0, len(table), size)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "CHUNK_ROWS", size)
        series = list(serialized_series(tables, level, parts))
    rows: list[Row] = []
    if series:
        by_part = pa.Table.from_batches(series).sort_by("part").to_batches(max_chunksize=3)
        for batch in rates_of_parts(by_part, windows_of(Policy()), [90, 50]):
            rows += batch.to_pylist()
    assert sorted(rows, key=in_order) == one_by_one(events, level, Policy(), [90, 50])


def test_entity_is_in_the_same_part_in_every_chunk() -> None:
    events = [idle(at, f"user {at % 7}", 10, broker=at % 3) for at in range(210)]
    tables = [arrow(events[at : at + 21]) for at in range(0, 210, 21)]
    part_of: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    sent = serialized_series(tables, USER, 1000)
    for (part,), series in grouping.unpacked(sent, busy_rates.SERIES):
        for row in series.to_pylist():
            part_of[row["broker"], row["user"]].add(part)
    assert len(part_of) == 21
    assert all(len(parts) == 1 for parts in part_of.values())
    assert len({part for parts in part_of.values() for part in parts}) > 15


def test_parts_grow_in_number_with_the_events() -> None:
    assert part_count(0) == part_count(PARTS_MIN * EVENTS_PER_PART) == PARTS_MIN
    assert part_count(100 * EVENTS_PER_PART + 1) == 101
    assert part_count(PARTS_MAX * EVENTS_PER_PART * 2) == PARTS_MAX


def test_no_events_yield_no_rates() -> None:
    assert list(serialized_series([], USER, 64)) == []
    assert list(serialized_series([arrow([])], USER, 64)) == []
    assert list(rates_of_parts([], windows_of(Policy()), [99])) == []
