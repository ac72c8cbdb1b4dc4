"""The fault rules of a broker or a proxy, with those that wait for them.

Owns the one rulebook: what the control API adds and removes, and which requests wait until a rule
has fired or is released. It must never know how a fault is carried out, or in which processes.
Invariant: every match is counted here, and what waits is woken by each change. The rules last as
long as this process, or as their store keeps them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from minibroker.lab.errors import ApiError, NotFound
from minibroker.lab.faults.fault_rule import FaultHold, FaultRule, FaultView, ServedVersions
from minibroker.lab.faults.matching import Candidate
from minibroker.lab.faults.rulebook import Firing, Rulebook, RuleState
from minibroker.lab.faults.store import RuleStore, is_counted_by_workers

TIMED_OUT_STATUS: Final = 408

POLL_S: Final = 0.02
"""Pause, in real time, between looks at counts of other processes."""


class FaultRegister:
    """The rulebook, and events when it changes."""

    def __init__(
        self,
        served: ServedVersions,
        now: Callable[[], float],
        sleep_real: Callable[[float], Awaitable[None]],
        store: RuleStore | None = None,
    ) -> None:
        """``served`` are the versions of APIs that requests may have.

        ``now`` is the clock of the rules; ``sleep_real`` waits for real seconds.
        """
        self._store = store or RuleStore()
        self.book: Final = Rulebook(served)
        self.book.restore(*self._store.load())
        self._now = now
        self._sleep_real = sleep_real
        self._changed = trio.Event()

    # The control API --------------------------------------------------------------------------

    def views(self) -> tuple[FaultView, ...]:
        """All rules."""
        now = self._now()
        for state in self.book.states():
            self._store.refresh(state)
        return tuple(state.view(now) for state in self.book.states())

    def view(self, rule_id: str) -> FaultView:
        """One rule. Raises ``NotFound``."""
        return self._state(rule_id).view(self._now())

    def add(self, rule: FaultRule) -> RuleState:
        """Add a rule. Raises ``InvalidJson`` or ``Conflict``."""
        state = self.book.add(rule, self._now())
        self._store.add(state, self.book.last_number)
        return state

    def remove(self, rule_id: str) -> None:
        """Remove a rule, and release what it holds. Raises ``NotFound``."""
        self._release(self._state(rule_id))
        self.book.remove(rule_id)
        self._store.remove(rule_id)

    def clear(self) -> None:
        """Remove all rules, and release what they hold."""
        for state in self.book.states():
            self._release(state)
        self.book.clear()
        self._store.clear()

    def release(self, rule_id: str) -> int:
        """Release what a rule holds; return how many that were. Raises ``NotFound``."""
        state = self._state(rule_id)
        held = state.held
        self._release(state)
        return held

    async def wait(self, rule_id: str, hits: int, timeout_ms: int) -> FaultView:
        """Wait for hits of a rule, for real time at most.

        Raises ``NotFound`` if the rule is removed, and ``ApiError`` after the time.
        """
        state = self._state(rule_id)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_after, timeout_ms, nursery.cancel_scope)
            while state.reached < hits and self.book.find(rule_id) is state:
                if is_counted_by_workers(state):
                    await self._sleep_real(POLL_S)
                    self._store.refresh(state)
                else:
                    await self._changed.wait()
            nursery.cancel_scope.cancel()
        if state.reached >= hits:
            return state.view(self._now())
        self._state(rule_id)
        raise ApiError(
            "REQUEST_TIMED_OUT",
            f"rule {rule_id} has fired {state.reached} of {hits} times within {timeout_ms} ms",
            f"Its selectors have matched {state.matches} times.",
            status=TIMED_OUT_STATUS,
        )

    async def _cancel_after(self, timeout_ms: int, scope: trio.CancelScope) -> None:
        await self._sleep_real(timeout_ms / 1000)
        scope.cancel()

    def _state(self, rule_id: str) -> RuleState:
        state = self.book.find(rule_id)
        if state is None:
            raise NotFound(
                "NO_SUCH_FAULT", f"there is no fault rule {rule_id!r}", "GET /v1/faults lists all."
            )
        self._store.refresh(state)
        return state

    # Requests ---------------------------------------------------------------------------------

    def decide(self, candidates: Sequence[Candidate]) -> tuple[Firing, ...]:
        """The rules that fire of those that match."""
        states = [self.book.find(each.rule_id) for each in candidates]
        for state in states:
            self._refresh_before(state)
        fired = self.book.decide(candidates, self._now())
        for candidate, state in zip(candidates, states, strict=True):
            if state is not None:
                self._store.count(state, candidate.counted)
        if fired:
            self._wake()
        return fired

    def _refresh_before(self, state: RuleState | None) -> None:
        """Read the counts of a rule that must have fired before, which workers may count."""
        if state is not None and state.active.rule.after_rule is not None:
            first = self.book.find(state.active.rule.after_rule)
            if first is not None:
                self._store.refresh(first)

    async def hold(self, rule_id: str, releases: int, what: FaultHold, again: bool = False) -> None:
        """Return when a rule has been released more often than that, or is removed.

        With ``again`` it was held already when the rules were kept.
        """
        state = self.book.find(rule_id)
        if state is None:
            return
        number = state.hold(what, again=again)
        self._store.count(state)
        self._wake()
        try:
            while state.releases <= releases:
                await self._changed.wait()
        finally:
            state.forget_hold(number)

    def overtaken(self, rule_id: str) -> None:
        """Release the first match of a pair, because the second one was answered."""
        if (state := self.book.find(rule_id)) is not None:
            state.release_pair()
            self._store.count(state)
            self._wake()

    def _release(self, state: RuleState) -> None:
        state.release()
        self._store.count(state)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
