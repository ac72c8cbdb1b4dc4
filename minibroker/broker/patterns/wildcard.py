"""Matching of selectors in which ``*`` is any text, also an empty one.

Owns the rule for every selector of a tester: fault rules, the journal and verdicts. It must never
know what the texts are. Invariant: each part between two ``*`` is searched once, from the end of
the one before, so no selector takes exponential time.
"""

from __future__ import annotations


def matches_wildcard(text: str, selector: str) -> bool:
    """Whether a text matches a selector, in which ``*`` matches any text."""
    first, *others = selector.split("*")
    if not others:
        return text == selector
    *middle, last = others
    if not (text.startswith(first) and text.endswith(last)):
        return False
    at, end = len(first), len(text) - len(last)
    for part in middle:
        at = text.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return at <= end
