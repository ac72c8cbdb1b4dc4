"""Counters of rare paths: each must be taken by some of many seeds, or the seeds prove little.

Owns the table of these paths, and the probes that count them inside the broker. It must never
change what the broker does: a probe looks at the result of one function. Invariant: every path of
the table is counted somewhere, and a name that no longer exists is an error. As the "sometimes"
assertions of Antithesis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final, NamedTuple

from minibroker.broker.apis.fetch_sessions import FetchSessionCache
from minibroker.broker.groups.classic_group import ClassicGroup
from minibroker.broker.groups.group_manager import GroupManager
from minibroker.broker.groups.offsets import PendingOffsets
from minibroker.broker.groups.states import GroupState
from minibroker.broker.log.batch_filter import CleanedTransactions
from minibroker.broker.log.producers import ProducerTable, UnstableTransactions
from minibroker.broker.transactions import service
from minibroker.broker.transactions.service import TransactionService
from minibroker.broker.transactions.state_machine import TransactionManager
from minibroker.lab.faults.places import AFTER, BEFORE
from minibroker.lab.faults.register import FaultRegister
from minibroker_protocol.errors import ErrorCode
from tests.simulation.rare_paths import (
    COMMITTED,
    CONCURRENT,
    DESCRIPTION_SHOWN,
    GIVEN_UP,
    KILLED,
    KILLED_AT_ACKNOWLEDGEMENT,
    KILLED_AT_COMMIT,
    KILLED_AT_END,
    KILLED_AT_SYNC,
    KILLED_WHILE_HELD,
    LATE_ACKNOWLEDGEMENT,
    LATE_COMMIT,
    ZOMBIE_FENCED,
)


class Probe(NamedTuple):
    """One function of the broker, and the paths that a call with its arguments and result takes."""

    owner: Any
    name: str
    paths: Callable[[tuple[Any, ...], Any], Iterable[str]]


def _if_result(path: str) -> Callable[[tuple[Any, ...], Any], Iterable[str]]:
    return lambda _, result: (path,) if result else ()


def _always(path: str) -> Callable[[tuple[Any, ...], Any], Iterable[str]]:
    return lambda _, __: (path,)


def _load(arguments: tuple[Any, ...], loaded: Any) -> Iterator[str]:
    transactions = arguments[0].transactions
    if any(transactions[each].is_prepared for each in loaded):
        yield KILLED_IN_PREPARE


def _time_out(_: tuple[Any, ...], decision: Any) -> Iterator[str]:
    if decision.write is not None:
        yield TIMED_OUT


def _start(arguments: tuple[Any, ...], _: Any) -> Iterator[str]:
    if len(arguments[0]) > 1:
        yield OVERLAP


def _decide(arguments: tuple[Any, ...], fired: Any) -> Iterator[str]:
    for each in fired:
        active = arguments[0].book.find(each.rule_id).active
        yield f"fault {active.rule.action.name}"
        yield f"fault {active.rule.action.name} {active.place}"


def _load_groups(_: tuple[Any, ...], loaded: Any) -> Iterator[str]:
    if any(group.members_count for group in loaded):
        yield MEMBERS_LOADED


def _expire_session(arguments: tuple[Any, ...], _: Any) -> Iterator[str]:
    group, member = arguments
    if member.member_id not in group.membership:
        yield EXPIRED


def _start_generation(arguments: tuple[Any, ...], _: Any) -> Iterator[str]:
    if len(arguments[0].membership) > 1:
        yield SHARED


def _commit_error(arguments: tuple[Any, ...], error: ErrorCode) -> Iterator[str]:
    if error is not ErrorCode.NONE:
        yield f"{COMMIT_REJECTED} {error.name}"
    elif arguments[0].state is GroupState.PREPARING_REBALANCE:
        yield COMMIT_IN_REBALANCE


KILLED_IN_PREPARE: Final = "coordinator killed in Prepare"
TIMED_OUT: Final = "transaction aborted by its timeout"
MARKERS_AGAIN: Final = "markers sent again"
OVERLAP: Final = "transactions overlap in a partition"
DUPLICATE: Final = "duplicate batch recognized"
ABORTED_CLEANED: Final = "aborted records cleaned"
MARKER_CLEANED: Final = "transaction marker cleaned"
PENDING: Final = "pending offsets committed"
EVICTED: Final = "fetch session evicted"
MEMBERS_LOADED: Final = "coordinator killed while a group has members"
EXPIRED: Final = "session of a member expired"
JOIN_TIMED_OUT: Final = "time to join a generation ended"
SYNC_TIMED_OUT: Final = "time to sync a generation ended"
REBALANCE_HELD: Final = "rebalance held"
SHARED: Final = "generation with several members"
COMMIT_IN_REBALANCE: Final = "offsets committed in a rebalance"
COMMIT_REJECTED: Final = "commit rejected by"
REJECTIONS: Final = ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION")
CLEANED: Final = ("cleaned states", "cleaned __transaction_state", "cleaned __consumer_offsets")

PROBES: Final = (
    Probe(TransactionManager, "load", _load),
    Probe(service, "time_out", _time_out),
    Probe(TransactionService, "_retry", _always(MARKERS_AGAIN)),
    Probe(UnstableTransactions, "start", _start),
    Probe(ProducerTable, "check", _if_result(DUPLICATE)),
    Probe(CleanedTransactions, "is_aborted", _if_result(ABORTED_CLEANED)),
    Probe(CleanedTransactions, "is_dispensable", _if_result(MARKER_CLEANED)),
    Probe(PendingOffsets, "commit", _if_result(PENDING)),
    Probe(FetchSessionCache, "_evict", _if_result(EVICTED)),
    Probe(FaultRegister, "decide", _decide),
    Probe(ClassicGroup, "_commit_error", _commit_error),
    Probe(GroupManager, "load", _load_groups),
    Probe(ClassicGroup, "_session_timed_out", _expire_session),
    Probe(ClassicGroup, "_join_timed_out", _always(JOIN_TIMED_OUT)),
    Probe(ClassicGroup, "_sync_timed_out", _always(SYNC_TIMED_OUT)),
    Probe(ClassicGroup, "_resume_rebalance", _always(REBALANCE_HELD)),
    Probe(ClassicGroup, "_start_generation", _start_generation),
)

FAULTS: Final = (
    *(f"fault error {at}" for at in (BEFORE, AFTER)),
    *("fault delay", "fault disconnect", "fault hold", "fault never_answer", "fault slow"),
    *("fault throttle", "fault reorder", "fault corrupt", "fault advance"),
)

PATHS: Final = (
    *(KILLED_IN_PREPARE, TIMED_OUT, MARKERS_AGAIN, OVERLAP, DUPLICATE, ABORTED_CLEANED),
    *(MARKER_CLEANED, PENDING, EVICTED, COMMITTED, CONCURRENT, ZOMBIE_FENCED, GIVEN_UP),
    *(MEMBERS_LOADED, EXPIRED, JOIN_TIMED_OUT, SYNC_TIMED_OUT, REBALANCE_HELD, SHARED),
    *(COMMIT_IN_REBALANCE, LATE_COMMIT),
    *(f"{COMMIT_REJECTED} {error}" for error in REJECTIONS),
    *(KILLED, KILLED_AT_END, KILLED_AT_SYNC, KILLED_AT_COMMIT, KILLED_WHILE_HELD),
    *(KILLED_AT_ACKNOWLEDGEMENT, LATE_ACKNOWLEDGEMENT, DESCRIPTION_SHOWN),
    *CLEANED,
    *FAULTS,
)
"""Paths that some of ``SEEDS_MIN`` seeds must take."""

SEEDS_MIN: Final = 700
"""Seeds that take every path almost always: some 4 of them take the rarest one."""


@contextmanager
def counted(counts: Counter[str]) -> Iterator[None]:
    """Within this, the probes add to ``counts``."""
    before = [probe.owner.__dict__[probe.name] for probe in PROBES]
    for probe, function in zip(PROBES, before, strict=True):
        setattr(probe.owner, probe.name, _counting(probe, function, counts))
    try:
        yield
    finally:
        for probe, function in zip(PROBES, before, strict=True):
            setattr(probe.owner, probe.name, function)


def _counting(probe: Probe, function: Any, counts: Counter[str]) -> Any:
    @wraps(function)
    def count(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        counts.update(probe.paths(arguments, result))
        return result

    return count


def never_taken(counts: Mapping[str, int]) -> list[str]:
    """The paths that no seed has taken."""
    return [path for path in PATHS if not counts.get(path)]


def table(counts: Mapping[str, int]) -> str:
    """All paths with how often each was taken."""
    others = sorted(counts.keys() - set(PATHS))
    return "\n".join(f"{counts.get(path, 0):>9}  {path}" for path in (*PATHS, *others))
