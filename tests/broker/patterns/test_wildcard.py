"""Selectors with stars; Python's own expressions are the oracle."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.patterns.wildcard import matches_wildcard


@given(st.text("ab.*", max_size=6), st.text("ab.*", max_size=8))
def test_star_matches_any_text_and_nothing_else_is_special(pattern: str, text: str) -> None:
    expected = re.compile(".*".join(map(re.escape, pattern.split("*")))).fullmatch(text)
    assert matches_wildcard(text, pattern) == (expected is not None)


def test_many_stars_match_in_linear_time() -> None:
    assert not matches_wildcard("a" * 30_000, "*a" * 500 + "b")
    assert not matches_wildcard("a" * 30_000, "*a" * 500 + "b*a")
