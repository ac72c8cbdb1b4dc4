from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.pipeline.report import formats


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (0.0001, "< 0.001"), (0.1234, "0.123"), (1, "1"), (1.005, "1"), (9.996, "10"),
     (12.34, "12.3"), (99.96, "100"), (1234.5, "1,234"), (-2.5, "-2.5")],
)  # fmt: skip
def test_figures_keep_three_digits(number: float, text: str) -> None:
    assert formats.figure(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1_234_567, "1.23 MB"), (5e18, "5,000 PB")],
)
def test_amounts_have_the_prefix_that_fits(number: float, text: str) -> None:
    assert formats.amount(number, "B") == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0 ms"), (0.42, "0.42 ms"), (999.4, "999 ms"), (999.6, "1 s"), (1234, "1.23 s"),
     (59_949, "59.9 s"), (60_000, "1 min"), (185_000, "3 min 5 s"), (3_600_000, "1 h"),
     (93_780_000, "1 d 2 h")],
)  # fmt: skip
def test_durations_have_two_units_at_most(ms: float, text: str) -> None:
    assert formats.duration(ms) == text


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (0, "0 %"),
        (0.00001, "< 0.01 %"),
        (0.0005, "0.05 %"),
        (0.0123, "1.2 %"),
        (0.5, "50 %"),
        (12, "1,200 %"),
    ],
)
def test_nonzero_shares_are_never_shown_as_zero(part: float, text: str) -> None:
    assert formats.share(part) == text


def test_counts_are_whole_until_a_million() -> None:
    assert [formats.count(n) for n in (0, 12_345, 1_234_567, 2.5e9)] == [
        "0", "12,345", "1.23 million", "2.5 billion",
    ]  # fmt: skip


def test_period_within_a_day_prints_date_once() -> None:
    day = 86_400_000_000
    assert formats.period(0, 61_000_000) == "1970-01-01 00:00:00 to 00:01:01 UTC"
    assert formats.period(0, day) == "1970-01-01 00:00:00 to 1970-01-02 00:00:00 UTC"


def test_party_of_anonymous_user_prints_client_only() -> None:
    assert formats.party("ANONYMOUS", "etl") == "etl"
    assert formats.party("ANONYMOUS", "") == "ANONYMOUS"
    assert formats.party("alice", "etl") == "alice / etl"
    assert formats.party("", "etl") == "etl"
    assert formats.party(None, None) == "(no name)"


def test_entity_prints_kind_of_each_name() -> None:
    assert formats.entity("alice", "etl") == "user alice, client etl"
    assert formats.entity("", "etl") == "client etl"


@given(st.text(max_size=300), st.integers(4, 60))
def test_any_name_is_shown_printable_and_short(name: str, most: int) -> None:
    shown = formats.visible(name, most)
    assert len(shown) <= most
    assert shown.isprintable()


def test_invisible_characters_are_escaped() -> None:
    assert formats.visible("a\u202eb\x00c\u2800") == "a\\u202eb\\x00c\\u2800"


def test_long_name_keeps_both_ends() -> None:
    assert formats.visible("a" * 40_000 + "tail", 16) == "a" * 10 + "…" + "atail"


@given(st.lists(st.text(max_size=60), unique=True, max_size=20))
def test_different_names_have_different_labels(names: list[str]) -> None:
    found = formats.labels(names, 12)
    assert len(set(found)) == len(names)


def test_labels_that_are_equal_once_cut_are_numbered() -> None:
    names = ["x" * 50, "x" * 50 + "x", formats.visible("x" * 50, 12) + " (2)"]
    assert len(set(formats.labels(names, 12))) == 3
