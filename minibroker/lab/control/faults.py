"""Fault rules in the control API: add, list, await, release and remove them.

Owns their operations, for brokers and proxies. It must never know how rules reach the connections,
or how a fault is carried out. Invariant: a rule that was added or removed is applied by every
connection when the operation is answered. Kafka has no equivalent; Trogdor's coordinator has tasks
with faults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, Protocol

from minibroker.lab.control.operation import WAIT_MS, WAIT_MS_MAX, Operations, whole_number
from minibroker.lab.faults.fault_rule import COUNT_MAX, FaultRule, FaultView
from minibroker.lab.schema import Doc, Fault, InvalidJson

if TYPE_CHECKING:
    from minibroker.lab.faults.register import FaultRegister


class FaultList(NamedTuple):
    """All fault rules, in the order in which they were added."""

    faults: tuple[FaultView, ...]


class FaultRelease(NamedTuple):
    """The result of a release."""

    released: Annotated[int, Doc("How many requests or others were held.")]


class FaultWait(NamedTuple):
    """What to wait for, as texts of a query."""

    hits: Annotated[str, Doc("Number of hits; by default 1.")] = "1"
    timeout_ms: Annotated[str, Doc("Real milliseconds to wait at most; by default 10000.")] = str(
        WAIT_MS
    )


class FaultRuleSet(Protocol):
    """The fault rules of a broker or a proxy."""

    @property
    def register(self) -> FaultRegister:
        """All rules, with their counts."""

    async def add(self, rule: FaultRule) -> FaultView:
        """Add a rule; every process applies it when this returns."""

    async def remove(self, fault_id: str) -> None:
        """Remove a rule from all processes, and release what it holds."""

    async def remove_all(self) -> None:
        """Remove all rules."""


class FaultContext(Protocol):
    """A broker or a proxy."""

    @property
    def faults(self) -> FaultRuleSet:
        """Its fault rules."""


FAULT_OPERATIONS: Final = Operations()
_NO_FAULT: Final = {404: "There is no fault rule with this id."}


@FAULT_OPERATIONS.add("GET", "/v1/faults")
async def list_faults(context: FaultContext) -> FaultList:
    """List all fault rules, with their hits."""
    return FaultList(context.faults.register.views())


@FAULT_OPERATIONS.add(
    "POST",
    "/v1/faults",
    status=201,
    errors={409: "There is a rule with this name, or too many rules are set."},
    example={"action": "error", "api": "Produce", "error": "NOT_ENOUGH_REPLICAS", "first": 2},
)
async def add_fault(context: FaultContext, rule: FaultRule) -> FaultView:
    """Add a fault rule; respond when every process applies it."""
    return await context.faults.add(rule)


@FAULT_OPERATIONS.add("DELETE", "/v1/faults")
async def remove_faults(context: FaultContext) -> None:
    """Remove all fault rules."""
    await context.faults.remove_all()


@FAULT_OPERATIONS.add("POST", "/v1/faults/{fault_id}/release", errors=_NO_FAULT)
async def release_fault(context: FaultContext, fault_id: str) -> FaultRelease:
    """Release what a fault rule holds."""
    return FaultRelease(context.faults.register.release(fault_id))


@FAULT_OPERATIONS.add(
    "GET",
    "/v1/faults/{fault_id}/wait",
    errors={408: "The rule has not fired so often within the timeout.", **_NO_FAULT},
)
async def wait_fault(context: FaultContext, fault_id: str, wait: FaultWait) -> FaultView:
    """Wait until a fault rule has fired: `?hits=…&timeout_ms=…`."""
    faults: list[Fault] = []
    hits = whole_number("hits", wait.hits, COUNT_MAX, faults)
    timeout_ms = whole_number("timeout_ms", wait.timeout_ms, WAIT_MS_MAX, faults)
    if faults:
        raise InvalidJson(faults)
    return await context.faults.register.wait(fault_id, hits, timeout_ms)


@FAULT_OPERATIONS.add("GET", "/v1/faults/{fault_id}", errors=_NO_FAULT)
async def get_fault(context: FaultContext, fault_id: str) -> FaultView:
    """Return a fault rule with its hits."""
    return context.faults.register.view(fault_id)


@FAULT_OPERATIONS.add("DELETE", "/v1/faults/{fault_id}", errors=_NO_FAULT)
async def remove_fault(context: FaultContext, fault_id: str) -> None:
    """Remove a fault rule, and release what it holds."""
    await context.faults.remove(fault_id)
