"""Fault rules of a test: ``broker.faults.add("error", api="Produce", error="NOT_COORDINATOR")``.

Owns the rules that a test has added, and the check that each of them fired. It must never know the
fields of a rule, which the broker checks, nor import anything beyond the standard library.
Invariant: a rule that was added in a context is removed at its end. The fields are those of the
reference page of faults.
"""

from __future__ import annotations

import time
from typing import Any, Final, Self

from minibroker.client.control import Control, ControlError

WAIT_S: Final = 10.0
WAIT_SLICE_S: Final = 20.0
"""Longest wait of one request."""

NARROW: Final = frozenset(
    {"topic", "topic_id", "group", "member", "transactional_id", "client_id", "connection"}
)
"""Selectors that keep a rule away from the tests of other processes."""


class FaultNeverFired(AssertionError):
    """A fault rule did not fire, so the test has not shown what it should."""


class SharedFaultError(RuntimeError):
    """A rule that would affect other processes that share the broker."""


class FaultHandle:
    """One fault rule that was added."""

    def __init__(self, faults: Faults, view: dict[str, Any]) -> None:
        self._faults = faults
        self.id: Final[str] = view["id"]
        self.rule: Final[dict[str, Any]] = view["rule"]

    def view(self) -> dict[str, Any]:
        """``matches``, ``hits``, ``held``, ``holds`` and the rule itself."""
        return self._faults.control.get("v1", "faults", self.id)

    @property
    def hits(self) -> int:
        """How often the rule fired."""
        return int(self.view()["hits"])

    @property
    def matches(self) -> int:
        """How often its selectors matched."""
        return int(self.view()["matches"])

    @property
    def held(self) -> int:
        """How many requests or others it holds now."""
        return int(self.view()["held"])

    @property
    def holds(self) -> list[dict[str, Any]]:
        """What it holds: the process, and what is known of client, request and entity."""
        found: list[dict[str, Any]] = self.view()["holds"]
        return [
            {name: value for name, value in each.items() if value is not None} for each in found
        ]

    def wait(self, hits: int = 1, timeout_s: float = WAIT_S) -> dict[str, Any]:
        """Wait until the rule has fired so often; raise `FaultNeverFired` after real seconds."""
        deadline = time.monotonic() + timeout_s
        while True:
            remaining = max(deadline - time.monotonic(), 0)
            query = {"hits": hits, "timeout_ms": int(min(remaining, WAIT_SLICE_S) * 1000)}
            try:
                return self._faults.control.get("v1", "faults", self.id, "wait", query=query)
            except ControlError as error:
                if error.code != "REQUEST_TIMED_OUT":
                    raise
                if time.monotonic() >= deadline:
                    raise FaultNeverFired(str(error)) from None

    def release(self) -> int:
        """Release what the rule holds; return how many."""
        answer = self._faults.control.post("v1", "faults", self.id, "release")
        return int(answer["released"])

    def remove(self) -> None:
        """Remove the rule, and release what it holds."""
        self._faults.control.delete("v1", "faults", self.id)
        self._faults.forget(self)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.rule.items())
        return f"fault rule {self.id} ({fields})"


class Faults:
    """The fault rules of one broker.

    As a context it checks at its end that every rule that was added in it fired, and removes them:
    ``with broker.faults as faults: faults.add(...)``.
    """

    def __init__(self, control: Control, *, guarded: bool = False) -> None:
        """``guarded`` rejects rules that could affect other processes that use the broker."""
        self.control = control
        self._guarded = guarded
        self._added: list[FaultHandle] = []

    def add(self, action: str, /, **fields: object) -> FaultHandle:
        """Add a rule; when this returns, every connection obeys it.

        Raises `ControlError` with the names of wrong fields.
        """
        if self._guarded and NARROW.isdisjoint(fields):
            raise SharedFaultError(
                "this rule would affect the tests of other xdist workers that use this broker; "
                f"select by one of {', '.join(sorted(NARROW))}, or start a broker of your own"
            )
        handle = FaultHandle(self, self.control.post("v1", "faults", action=action, **fields))
        self._added.append(handle)
        return handle

    def act(self, action: str, /, **fields: object) -> int:
        """Let the broker do something now, e.g. ``act("rebalance", group="g")``.

        Returns how many members, logs or others were changed, after that is done.
        """
        return int(self.control.post("v1", "actions", action=action, **fields)["affected"])

    def list(self) -> list[dict[str, Any]]:
        """All rules of the broker with their hits."""
        found: list[dict[str, Any]] = self.control.get("v1", "faults")["faults"]
        return found

    def clear(self) -> None:
        """Remove the rules that were added here."""
        for handle in list(self._added):
            try:
                handle.remove()
            except ControlError as error:  # It was removed by other means.
                if error.code != "NO_SUCH_FAULT":
                    raise
                self.forget(handle)

    def check(self) -> None:
        """Raise `FaultNeverFired` if a rule that was added here has not fired."""
        silent = [handle for handle in self._added if not handle.hits]
        if silent:
            texts = ", ".join(f"{each!r} matched {each.matches} times" for each in silent)
            raise FaultNeverFired(f"never fired: {texts}")

    def forget(self, handle: FaultHandle) -> None:
        """Forget a rule that was removed."""
        if handle in self._added:
            self._added.remove(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            if error is None:
                self.check()
        finally:
            self.clear()
