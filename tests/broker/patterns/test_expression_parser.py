"""Syntax of patterns: what is accepted is what RE2/J accepts."""

from __future__ import annotations

import contextlib
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.patterns.expression_parser import (
    DEPTH_MAX,
    PATTERN_CHARS_MAX,
    CharSet,
    InvalidPattern,
    Repeat,
    Sequence,
    parse_pattern,
)

VALID: Final = r"""
    e .* a| | () ()* ^* ^*e \d [[:alpha:]] [[:^alpha:]] [[:alpha] (?i:E) (?i)e(?-i) (?)e (?:)e \x65
    \x{65} \145 \45 \0 []e] [^]] [e-] [\d-z] [\w] [^\W] \b.\b \Ae\z e{,2} e{1} e{1,} e{0,0} e{01} e{
    } ] (?m)^e$ (?s). (?U)e+ \_ \- \é \p{Any} \p{^L} \PL [e-f-g] e+? (e{2}){3} (x{100}){11} \Qe
    \Q*\E+ (?P<n>e) (?<n>e) [[.a.]] (e*)* \a \v
"""

INVALID: Final = r"""
    [ ( a** a{2,1} a{1001} (?=a) \1 \q x{1000}{1000} e++ e+?? (?z)e \p{Nope} * (*) |* a\ [[:nope:]]
    [z-a] (?-)e (?<=a)b (?>e) \x{110000} \x6 \x{} \8 [a-\d] \Z \C \X ) (?P<n>e)|(?P<n>f) (?P<>e)
    (?P<a-b>e) (?P=n) \p{} \p [a [^ e\E \G \R e{2}{3} e*{3} (?#c)e [\b] [\A] \h e{1001,} e{1,1001}
    e{99999999999} (?i (?P<n e|* \p{Greek} [a-
"""


@pytest.mark.parametrize("text", VALID.split())
def test_pattern_of_re2_is_accepted(text: str) -> None:
    parse_pattern(text)


@pytest.mark.parametrize("text", INVALID.split())
def test_other_pattern_is_invalid(text: str) -> None:
    with pytest.raises(InvalidPattern):
        parse_pattern(text)


def test_endless_number_is_invalid() -> None:
    with pytest.raises(InvalidPattern):
        parse_pattern(f"a{{{'9' * 10_000}}}")


def test_tree_has_the_parts_of_the_pattern() -> None:
    tree = parse_pattern("a(b){2,3}?")
    assert tree == Sequence((CharSet(((97, 97),)), Repeat(CharSet(((98, 98),)), 2, 3)))


def test_groups_within_groups_are_limited() -> None:
    parse_pattern("(" * DEPTH_MAX + ")" * DEPTH_MAX)
    with pytest.raises(InvalidPattern, match="groups within groups"):
        parse_pattern("(" * (DEPTH_MAX + 1) + ")" * (DEPTH_MAX + 1))


@given(st.text(alphabet=r"ab01{},*+?()[]^$|\-:<>=PQEpLxids ", max_size=30))
def test_any_text_is_accepted_or_invalid(text: str) -> None:
    with contextlib.suppress(InvalidPattern):
        parse_pattern(text)


def test_length_of_a_pattern_is_limited() -> None:
    parse_pattern("a" * PATTERN_CHARS_MAX)
    with pytest.raises(InvalidPattern, match=str(PATTERN_CHARS_MAX)):
        parse_pattern("a" * (PATTERN_CHARS_MAX + 1))
