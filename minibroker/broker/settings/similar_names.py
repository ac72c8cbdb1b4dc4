"""Finds names similar to a mistyped one, for error messages.

Owns the measure of similarity: the share of both names' characters that are common and in the same
order. It must never know what is named. Invariant: names whose lengths differ too much are not
compared, so a long name from a client costs nothing. Python's ``difflib`` measures similarly, but
importing it takes 7 ms, which every start of a broker would wait for.
"""

from __future__ import annotations

from collections.abc import Iterable


def similar_names(
    name: str, names: Iterable[str], *, count_max: int, similarity_min: float
) -> list[str]:
    """Return the most similar names, the best first."""
    found = []
    for each in names:
        total = len(name) + len(each)
        if 2 * min(len(name), len(each)) < similarity_min * total:
            continue
        similarity = 2 * _common_characters(name, each) / total if total else 1.0
        if similarity >= similarity_min:
            found.append((similarity, each))
    found.sort(key=lambda pair: pair[0], reverse=True)
    return [each for _, each in found[:count_max]]


def _common_characters(first: str, second: str) -> int:
    """Return the length of the longest common subsequence."""
    before = [0] * (len(second) + 1)
    for character in first:
        row = [0]
        for at, other in enumerate(second):
            row.append(before[at] + 1 if character == other else max(row[at], before[at + 1]))
        before = row
    return before[-1]
