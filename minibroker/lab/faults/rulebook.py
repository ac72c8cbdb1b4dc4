"""All fault rules of a broker, with what they have done so far.

Owns the order of rules, their counts, and the decision which of the matching rules fire. It must
never know a process, a socket or a clock: the time is an argument. Invariant: a decision is made in
one place for all processes, so counts are exact, and a rule that is asked twice in the same order
with the same seed fires for the same matches.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from minibroker.lab.errors import Conflict
from minibroker.lab.faults.actions import Hold, Observe, Reorder
from minibroker.lab.faults.fault_rule import (
    COUNTERS_MAX,
    HOLDS_SHOWN_MAX,
    RULES_MAX,
    ActiveRule,
    FaultHold,
    FaultRule,
    FaultView,
    ServedVersions,
    check_rule,
)
from minibroker.lab.faults.matching import Candidate
from minibroker.lab.faults.places import BEFORE
from minibroker.lab.schema import Fault, InvalidJson, did_you_mean

_FRACTION_BYTES: Final = 8
_FRACTION_BITS: Final = 53
"""As many as a float has."""


class Firing(NamedTuple):
    """A rule that fires: when, and how often it was released before.

    Delays count from here, so a clock that is advanced after a hit ends them.
    """

    rule_id: str
    now: float
    releases: int
    """What the rule holds for this waits for one more."""
    overtakes: bool = False
    """Whether this is the second of a pair that the rule exchanges."""
    is_late: bool = False
    """Whether the rule has not fired yet, and only claims what it would fire for."""
    match: int = 0
    """The number of the match, on which random delays depend."""


class RuleCounts(NamedTuple):
    """What a rule has done so far."""

    matches: int = 0
    hits: int = 0
    releases: int = 0
    arrivals: int = 0
    """How much it has held."""


NO_COUNTS: Final = RuleCounts()


class RuleState:
    """One rule with its counts."""

    __slots__ = (
        "_arrivals",
        "_hold_number",
        "_holds",
        "active",
        "counted",
        "hits",
        "matches",
        "releases",
    )

    def __init__(
        self,
        active: ActiveRule,
        counts: RuleCounts = NO_COUNTS,
        counted: Mapping[str, int] | None = None,
    ) -> None:
        """``counted`` are the matches of what it counts separately."""
        self.active = active
        self.counted = OrderedDict(counted or {})
        """Matches of what it counts separately, by its text; the last match is at the end."""
        self.matches, self.hits, self.releases, self._arrivals = counts
        self._holds: dict[int, FaultHold] = {}
        self._hold_number = 0

    @property
    def counts(self) -> RuleCounts:
        """What it has done so far."""
        return RuleCounts(self.matches, self.hits, self.releases, self._arrivals)

    def matches_of(self, counted: str) -> int:
        """The matches of one of those that it counts separately, or all."""
        return self.matches if self.active.rule.per is None else self.counted.get(counted, 0)

    @property
    def reached(self) -> int:
        """How often it fired; of what it holds, only what has arrived where it is held."""
        return self._arrivals if isinstance(self.active.rule.action, Hold) else self.hits

    @property
    def held(self) -> int:
        """How many it holds now."""
        return len(self._holds)

    def hold(self, what: FaultHold, *, again: bool = False) -> int:
        """Note that it holds something; return the number by which that is removed.

        With ``again`` the former controller held it already.
        """
        self._arrivals += not again
        self._hold_number += 1
        self._holds[self._hold_number] = what
        return self._hold_number

    def forget_hold(self, number: int) -> None:
        """Note that it no longer holds something."""
        del self._holds[number]

    def release(self) -> None:
        """Release all that it holds."""
        self.releases = self._pairs if self._exchanges else self.releases + 1

    def release_pair(self) -> None:
        """Release the first of a pair, because the second one was answered."""
        self.releases = min(self.releases + 1, self._pairs)

    @property
    def _exchanges(self) -> bool:
        return isinstance(self.active.rule.action, Reorder)

    @property
    def _pairs(self) -> int:
        """Pairs that have at least their first match."""
        return (self.hits + 1) // 2

    def firing(self, now: float) -> Firing:
        """The last hit, as its request gets it."""
        if not self._exchanges:
            return Firing(self.active.id, now, self.releases, match=self.matches)
        return Firing(self.active.id, now, self._pairs - 1, overtakes=self.hits % 2 == 0)

    def view(self, now: float) -> FaultView:
        """The rule as the control API shows it."""
        namespace = self.active.rule.namespace
        holds = islice(self._holds.values(), HOLDS_SHOWN_MAX)
        return FaultView(
            self.active.id,
            self.active.rule.given,
            self.matches,
            self.hits,
            self.held,
            tuple(each if namespace is None else each.in_namespace(namespace) for each in holds),
            int((now - self.active.added) * 1000),
        )

    def match(self, now: float, counted: str = "") -> bool:
        """Count a match, and return whether the rule fires."""
        if not is_in_time(self.active, now):
            return False
        self.matches += 1
        if self.active.rule.per is not None:
            self.counted[counted] = self.counted.get(counted, 0) + 1
            self.counted.move_to_end(counted)
            if len(self.counted) > COUNTERS_MAX:
                self.counted.popitem(last=False)
        fires = fires_at(self.active.rule, self.matches_of(counted))
        self.hits += fires
        return fires

    def would_fire(self, now: float, counted: str = "") -> bool:
        """Whether the rule fires for its next match."""
        rule = self.active.rule
        return is_in_time(self.active, now) and fires_at(rule, self.matches_of(counted) + 1)


class Rulebook:
    """The rules in the order in which they were added."""

    def __init__(self, served: ServedVersions) -> None:
        """``served`` are the versions of APIs that requests may have."""
        self._served = served
        self._states: dict[str, RuleState] = {}
        self._last_number = 0

    def active(self) -> tuple[ActiveRule, ...]:
        """All rules."""
        return tuple(state.active for state in self._states.values())

    def states(self) -> Iterable[RuleState]:
        """All rules with their counts."""
        return self._states.values()

    def find(self, rule_id: str) -> RuleState | None:
        return self._states.get(rule_id)

    def add(self, rule: FaultRule, now: float) -> RuleState:
        """Add a rule. Raises ``InvalidJson`` or ``Conflict``."""
        check_rule(rule, self._served)
        if rule.after_rule is not None and rule.after_rule not in self._states:
            advice = did_you_mean(rule.after_rule, self._states)
            raise InvalidJson(
                [Fault("after_rule", f"there is no rule {rule.after_rule!r}{advice}")]
            )
        if rule.name is not None and rule.name in self._states:
            raise Conflict("DUPLICATE_RULE", f"there is a rule {rule.name!r}")
        if len(self._states) >= RULES_MAX:
            raise Conflict(
                "TOO_MANY_RULES", f"{RULES_MAX} rules are set", "Remove those not needed."
            )
        self._last_number += 1
        rule_id = rule.name or str(self._last_number)
        state = self._states[rule_id] = RuleState(ActiveRule(rule_id, rule, added=now))
        return state

    @property
    def last_number(self) -> int:
        """The last id that was a number."""
        return self._last_number

    def restore(self, rules: Iterable[RuleState], last_number: int) -> None:
        """Add rules with the ids and counts that they had."""
        self._last_number = last_number
        self._states.update({state.active.id: state for state in rules})

    def remove(self, rule_id: str) -> bool:
        """Remove a rule; return whether it existed."""
        return self._states.pop(rule_id, None) is not None

    def clear(self) -> None:
        """Remove all rules."""
        self._states.clear()

    def decide(self, candidates: Sequence[Candidate], now: float) -> tuple[Firing, ...]:
        """The rules that fire, of those that match one request or connection.

        A rule whose action is final claims the entities that it matches: later rules with such an
        action neither count nor fire if nothing is left for them. Nor do rules after one that
        leaves the request without an answer.
        """
        fired: list[Firing] = []
        claimed: set[int] = set()
        is_all_claimed = has_ended = False
        for candidate in candidates:
            state = self._states.get(candidate.rule_id)
            if state is None:
                continue  # Removed in the meantime.
            action = state.active.rule.action
            is_final = action.is_final
            if not self._has_begun(state, candidate, fired):
                continue
            if is_final and (is_all_claimed or _is_claimed(candidate, claimed)):
                continue
            if has_ended and not isinstance(action, Observe):
                continue  # The request does not get there.
            if candidate.is_late and state.would_fire(now, candidate.counted):
                fired.append(Firing(candidate.rule_id, now, state.releases, is_late=True))
            elif not candidate.is_late and state.match(now, candidate.counted):
                fired.append(state.firing(now))
            else:
                continue
            has_ended |= action.ends_request and action.place == BEFORE
            if is_final and candidate.claims is None:
                is_all_claimed = True
            elif is_final and candidate.claims is not None:
                claimed.update(candidate.claims)
        return tuple(fired)

    def _has_begun(self, state: RuleState, candidate: Candidate, fired: Iterable[Firing]) -> bool:
        """Whether the rule after which this one matches has fired for another request."""
        name = state.active.rule.after_rule
        if name is None:
            return True
        first = self._states.get(name)
        same = {each.rule_id for each in fired if not each.is_late}.union(candidate.fired)
        return first is not None and first.hits > (name in same)


def _is_claimed(candidate: Candidate, claimed: set[int]) -> bool:
    """Whether other rules have claimed all entities of a match."""
    return candidate.claims is not None and claimed.issuperset(candidate.claims)


def is_in_time(active: ActiveRule, now: float) -> bool:
    """Whether a rule matches now, so long after it was added."""
    rule, age_ms = active.rule, (now - active.added) * 1000
    if rule.after_ms is not None and age_ms < rule.after_ms:
        return False
    return rule.until_ms is None or age_ms < rule.until_ms


def fires_at(rule: FaultRule, match: int) -> bool:
    """Whether a rule fires at its n-th match, counted from 1."""
    if rule.first is not None:
        return match <= rule.first
    if rule.nth is not None:
        return match == rule.nth
    if rule.every is not None:
        return match % rule.every == 0
    if rule.probability is not None:
        return chances(rule.seed or 0, match)[0] < rule.probability
    return True


def chances(seed: int, match: int) -> tuple[float, float]:
    """Two numbers from 0 to below 1 that depend only on seed and match."""
    digest = hashlib.blake2b(f"{seed}:{match}".encode(), digest_size=_FRACTION_BYTES).digest()
    one, other = (
        int.from_bytes(each, "big") >> (64 - _FRACTION_BITS) for each in (digest, digest[::-1])
    )
    return one / 2**_FRACTION_BITS, other / 2**_FRACTION_BITS
