"""The fault rules of a proxy: set by the control API, applied to all its connections.

Owns the check of what a proxy cannot do, and the delivery of rules to the connections, which are in
the same process. It must never know what a rule does. Invariant: a rule that was added or removed
is applied by every connection when the call returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import trio

from minibroker.lab.faults.actions import Close, Hold
from minibroker.lab.faults.execution import FaultedConnection, FaultExecutor
from minibroker.lab.faults.fault_rule import FaultHold, FaultRule, FaultView
from minibroker.lab.faults.matching import Candidate
from minibroker.lab.faults.places import AFTER
from minibroker.lab.faults.register import FaultRegister
from minibroker.lab.faults.rulebook import Firing
from minibroker.lab.schema import Fault, InvalidJson
from minibroker_protocol import registry
from minibroker_protocol.registry import ApiKey

PROXY: Final = "proxy"
"""The process that holds requests."""

_NO_BROKER: Final = (
    "acts on a broker from inside, which a proxy cannot do; use it on `minibroker start`"
)
_NO_POINT: Final = "is inside of a broker; use it on `minibroker start`"
_NO_NAMESPACE: Final = "is that of a broker; a proxy has none"
_NO_PRINCIPAL: Final = "is not known to a proxy, which passes authentication on; use client_id"


class ProxyFaults:
    """Implements ``control.faults.FaultRuleSet`` and ``faults.execution.FaultDecisions``."""

    def __init__(self, connections: Callable[[], Iterable[FaultedConnection]]) -> None:
        """``connections`` returns those that are open."""
        self._connections = connections
        self.register: Final = FaultRegister(_ReadableVersions(), trio.current_time, trio.sleep)
        self.executor: Final = FaultExecutor(self)

    # The control API --------------------------------------------------------------------------

    async def add(self, rule: FaultRule) -> FaultView:
        """Add a rule; returns when every connection applies it."""
        action = rule.action
        if action.acts_on_broker or action.matches == "appends":
            raise InvalidJson([Fault("action", f"{action.name} {_NO_BROKER}")])
        if isinstance(action, Hold) and rule.point is not None and action.place != AFTER:
            raise InvalidJson([Fault("point", f"{action.point} {_NO_POINT}")])
        if rule.principal is not None:
            raise InvalidJson([Fault("principal", _NO_PRINCIPAL)])
        if rule.namespace is not None:
            raise InvalidJson([Fault("namespace", _NO_NAMESPACE)])
        state = self.register.add(rule)
        self.executor.change_rules([state.active])
        if isinstance(action, Close):
            await self.executor.close_matching(state.active, list(self._connections()))
        return state.view(trio.current_time())

    async def remove(self, fault_id: str) -> None:
        """Remove a rule, and release what it holds."""
        self.register.remove(fault_id)
        self.executor.change_rules((), [fault_id])

    async def remove_all(self) -> None:
        """Remove all rules, and release what they hold."""
        self.register.clear()
        self.executor.change_rules((), replaces=True)

    # Connections ------------------------------------------------------------------------------

    async def decide(self, candidates: Sequence[Candidate]) -> Sequence[Firing]:
        """The rules that fire of those that match."""
        return self.register.decide(candidates)

    async def hold(self, rule_id: str, releases: int, what: FaultHold) -> None:
        """Return when a rule has been released more often than that, or is removed."""
        await self.register.hold(rule_id, releases, what._replace(process=PROXY))

    async def act(self, rule_id: str) -> None:
        """Carry out a rule that acts on another request; others are rejected."""
        self.register.overtaken(rule_id)


class _ReadableVersions(Mapping[int, tuple[int, int]]):
    """All versions that a proxy can read, of which the cluster may serve fewer."""

    def __getitem__(self, key: int) -> tuple[int, int]:
        return registry.schema(key).valid_versions  # Loads the module of this API only.

    def __iter__(self) -> Iterator[int]:
        return iter(ApiKey)

    def __len__(self) -> int:
        return len(ApiKey)
