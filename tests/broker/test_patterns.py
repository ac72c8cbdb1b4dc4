"""Patterns: RE2/J accepts the same, and they match what it matches, in linear time."""

from __future__ import annotations

import contextlib
import re
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.patterns import (
    DEPTH_MAX,
    PATTERN_CHARS_MAX,
    POSITIONS_KEPT_MAX,
    VISITS_MAX,
    CharSet,
    CompiledPattern,
    InvalidPattern,
    PatternTooCostly,
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


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("a.c", ["abc", "a.c"], ["ac", "abcd", "a\nc"]),
        ("(?s)a.c", ["a\nc"], ["ac"]),
        ("app-[0-9]+", ["app-1", "app-42"], ["app-", "my-app-1"]),
        ("a|bc|", ["a", "bc", ""], ["b", "abc"]),
        ("(ab){2,3}", ["abab", "ababab"], ["ab", "abababab"]),
        ("a{2,}", ["aa", "aaaa"], ["a"]),
        ("(?i)straße", ["STRASSE".replace("SS", "ß"), "Straße"], ["strasse"]),
        ("(?i)[^e]", ["a"], ["e", "E"]),
        ("(?i:a)b", ["Ab", "ab"], ["AB"]),
        ("a(?i)b|c", ["ab", "aB", "C"], ["AB"]),
        (r"\d\w\s", ["1a ", "9_\t"], ["aa ", "1a\v"]),
        (r"\D\W\S", ["a-b"], ["1-b"]),
        (r"[^\D1]", ["2"], ["1", "a"]),
        (r"[\d-z]", ["5", "-", "z"], ["e"]),
        ("[[:upper:]-]", ["A", "-"], ["a"]),
        ("[[:^upper:]]", ["a"], ["A"]),
        (r"\pL\p{Nd}\PL", ["é٣-"], ["1a-"]),
        (r"\Qa.b\E+", ["a.b", "a.bb"], ["axb"]),
        (r"\x41\x{1F600}\101\t", ["A😀A\t"], ["A"]),
        ("^a$", ["a"], ["a\n"]),
        ("(?m)a$\n^b", ["a\nb"], ["a\n"]),
        (r"a\b.\Bc", ["a.\x00c"[:2] + "c"][:0], ["a.c"]),
        (r".\b-\b.", ["a-b"], ["--b"]),
        (r".\B.", ["ab"], ["a-"]),
        (r"\p{Any}", ["x", "\n"], [""]),
    ],
)
def test_pattern_matches_whole_texts_only(
    pattern: str, matching: list[str], other: list[str]
) -> None:
    compiled = CompiledPattern(pattern)
    assert [text for text in matching if not compiled.matches(text)] == []
    assert [text for text in other if compiled.matches(text)] == []


PATTERNS = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\w", r"\b", "^", "$", ""]),
    lambda part: st.one_of(
        st.builds("{}{}".format, part, part),
        st.builds("(?:{}|{})".format, part, part),
        st.builds("(?:{}){}".format, part, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "*?"])),
    ),
    max_leaves=8,
)


@given(pattern=PATTERNS, text=st.text(alphabet="ab- ", max_size=8))
def test_pattern_matches_what_python_matches(pattern: str, text: str) -> None:
    assert CompiledPattern(pattern).matches(text) is bool(re.fullmatch(pattern, text))


def test_exponential_pattern_takes_linear_time() -> None:
    compiled = CompiledPattern("(a*)*(a|aa)+b")
    assert not compiled.matches("a" * 20_000)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (".*", "".join(map(chr, range(0x4E00, 0x4E00 + POSITIONS_KEPT_MAX // 2)))),
        ("(a?){300}.*", "".join(map(chr, range(0x4E00, 0x4E00 + 1000)))),
    ],
)
def test_remembered_steps_are_limited(pattern: str, text: str) -> None:
    compiled = CompiledPattern(pattern)
    kept = []
    for at in range(0, len(text), 100):
        compiled.matches(text[at : at + 100])
        kept.append(sum(1 + len(following) for following in compiled._steps.values()))
    assert max(kept) <= POSITIONS_KEPT_MAX + 5_000


def test_texts_that_match_are_selected() -> None:
    assert CompiledPattern("a.*").select(["ab", "b", "a"]) == ["ab", "a"]


@pytest.mark.parametrize("pattern", ["(a?){1000}a{1000}", f"([^{'b-c' * 1000}][^{'b-c' * 300}]?)*"])
def test_visits_in_one_call_are_limited(pattern: str) -> None:
    compiled = CompiledPattern(pattern)
    texts = ["".join(map(chr, range(0x4E00 + at, 0x4E00 + at + 50))) for at in range(500)]
    with pytest.raises(PatternTooCostly, match=str(VISITS_MAX)):
        compiled.select(["a" * 900, *texts])
    assert compiled._visits < 2 * VISITS_MAX
    assert not compiled.matches("b")


@pytest.mark.parametrize(
    "pattern",
    [
        "(a{1000}){6}",
        "(((a{100}){100}){100}){100}",
        "(((((){1000}){1000}){1000}){1000})",
        "((((a{0}){1000}){1000}){1000})",
    ],
)
def test_pattern_of_too_many_instructions_is_invalid(pattern: str) -> None:
    with pytest.raises(InvalidPattern, match="instructions"):
        CompiledPattern(pattern)


def test_limit_of_instructions_can_be_lower() -> None:
    CompiledPattern("a{9}", 10)
    with pytest.raises(InvalidPattern, match="more than 10 instructions"):
        CompiledPattern("a{10}", 10)
