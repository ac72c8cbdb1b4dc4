"""Situations in which a rule of good behavior applies, and the rules' common shape.

Owns the types that every rule uses. It must never know a particular rule. Invariant: a rule says
nothing about a client that never was in its situation, so silence is not approval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import NamedTuple

from minibroker.lab.verdicts.traffic import ClientTraffic


class Severity(StrEnum):
    """How much a broken rule matters."""

    ERROR = "error"
    """Records, commits or requests can fail or get lost."""
    WARNING = "warning"
    """The broker or other clients suffer."""
    ADVICE = "advice"
    """It is harder to operate the client."""


class Situation(NamedTuple):
    """One occasion to keep or to break a rule."""

    evidence: tuple[int, ...]
    """Sequence numbers of entries in the journal."""
    fault: str = ""
    """What the client did against the rule; empty if it kept the rule."""


class BehaviorRule(NamedTuple):
    """One rule of good behavior."""

    id: str
    statement: str
    """The rule in one sentence."""
    source: str
    """The KIP or document that the rule follows."""
    severity: Severity
    situation: str
    """When the rule applies, for clients that were never observed in it."""
    observe: Callable[[ClientTraffic], Iterator[Situation]]
    remedy: str
    """What an author of a client can do."""


def duration(ms: float) -> str:
    """Write a duration for a reader."""
    return f"{ms:.0f} ms" if ms < 10_000 else f"{ms / 1000:.1f} s"
