"""Anomalies of single values: where they are in the log, and which operations polled them.

Owns the rules that need no order of operations. It must never know processes or time. Invariant:
each value is in at most one of the rows lost-write and unseen. Jepsen's G1a is ``aborted-read``.
"""

from __future__ import annotations

from collections.abc import Iterator

from minibroker.lab.checker.anomalies import LISTED_MAX, FoundAnomaly, listed
from minibroker.lab.checker.client_history import ClientOperation, OperationResult, Value
from minibroker.lab.checker.record_order import Observations


def inconsistent_offsets(observations: Observations) -> Iterator[FoundAnomaly]:
    """Find offsets with two or more values."""
    for key, order in observations.orders.items():
        for index, values in enumerate(order.values):
            if isinstance(values, set):
                offset = order.offsets[index]
                shown = listed([repr(value) for value in order.values_at(index)], " and ")
                yield FoundAnomaly(
                    "inconsistent-offsets",
                    f"offset {offset} of {key} has the values {shown}",
                    _writer_lines(observations, key, *order.values_at(index)),
                    key,
                )


def duplicates(observations: Observations) -> Iterator[FoundAnomaly]:
    """Find values at two or more offsets."""
    for key, order in observations.orders.items():
        for value, first in order.first_index.items():
            last = order.last_index[value]
            if last > first:
                yield FoundAnomaly(
                    "duplicate",
                    f"value {value!r} of {key} is at offset {order.offsets[first]} and at "
                    f"offset {order.offsets[last]}",
                    _writer_lines(observations, key, value),
                    key,
                )


def lost_writes(observations: Observations) -> Iterator[FoundAnomaly]:
    """Find committed values that were passed over by all ok operations."""
    readers: dict[str, int] = {}
    for key, lost in observations.lost.items():
        if not lost:
            continue
        order = observations.orders[key]
        bound = observations.poll_bound(key)
        if not readers:
            readers = _lines_of_highest_polls(observations)
        last = order.last_index
        for value in sorted(lost, key=lambda each: (last.get(each, -1), repr(each))):
            writer = observations.writer_of[key][value]
            reason = "acknowledged" if writer.result is OperationResult.OK else "partly polled"
            index = last.get(value)
            place = "" if index is None else f" at offset {order.offsets[index]}"
            polled = f"offset {order.offsets[bound]}"
            if index is None:
                polled = f"the later offset {order.offsets[bound]}"
            elif index == bound:
                polled = "another value at the same offset"
            yield FoundAnomaly(
                "lost-write",
                f"value {value!r} of {key}{place} was not polled; line {writer.line} sent it and "
                f"was {reason}, and line {readers[key]} polled {polled}",
                (writer.line, readers[key]),
                key,
            )


def _lines_of_highest_polls(observations: Observations) -> dict[str, int]:
    """Return for each key the line of an ok operation that polled the highest record."""
    bounds = {key: observations.poll_bound(key) for key in observations.polled_ok}
    lines: dict[str, int] = {}
    for operation in observations.history.completed:
        if operation.result is OperationResult.OK:
            for key, polled in operation.polls.items():
                first = observations.orders[key].first_index
                if key not in lines and any(first[each.value] == bounds[key] for each in polled):
                    lines[key] = operation.line
    return lines


def foreign_reads(observations: Observations) -> Iterator[FoundAnomaly]:
    """Find polled values of failed operations, of the same transaction, and of no operation."""
    for operation in observations.history.completed:
        for key, polled in operation.polls.items():
            own = {record.value for record in operation.sends.get(key, ())}
            writers = observations.writer_of.get(key, {})
            for value in dict.fromkeys(record.value for record in polled):
                found = _foreign_read(operation, key, value, writers.get(value), own)
                if found is not None:
                    yield found


def _foreign_read(
    operation: ClientOperation,
    key: str,
    value: Value,
    writer: ClientOperation | None,
    own: set[Value],
) -> FoundAnomaly | None:
    polled = f"line {operation.line} polled value {value!r} of {key}"
    if writer is None:
        return FoundAnomaly(
            "phantom-read", f"{polled}, which no operation sent", (operation.line,), key
        )
    if value in own:
        return FoundAnomaly(
            "precommitted-read",
            f"{polled}, which the same transaction sent",
            (operation.line,),
            key,
        )
    if writer.result is OperationResult.FAIL and operation.result is OperationResult.OK:
        return FoundAnomaly(
            "aborted-read",
            f"{polled}, which the failed operation of line {writer.line} sent",
            (writer.line, operation.line),
            key,
        )
    return None


def unseen(observations: Observations) -> Iterator[FoundAnomaly]:
    """Find committed values that no operation polled and that are not lost."""
    for operation in observations.history.operations:
        is_torn = observations.is_torn(operation)
        if operation.result is not OperationResult.OK and not is_torn:
            continue
        lines: tuple[int, ...] = (operation.line,)
        reason = f"was acknowledged in line {operation.line}"
        if is_torn:
            proof = observations.evidence[operation.index]
            lines = (operation.line, proof.line)
            reason = (
                f"is of the transaction in line {operation.line}, of which line {proof.line} "
                "polled a part"
            )
        for key, records in operation.sends.items():
            polled = observations.polled.get(key, ())
            lost = observations.lost.get(key, ())
            for record in records:
                if record.value not in polled and record.value not in lost:
                    yield FoundAnomaly(
                        "unseen",
                        f"value {record.value!r} of {key} {reason}, and no operation polled it",
                        lines,
                        key,
                    )


def _writer_lines(observations: Observations, key: str, *values: Value) -> tuple[int, ...]:
    writers = observations.writer_of.get(key, {})
    lines = sorted({writers[value].line for value in values if value in writers})
    return tuple(lines[:LISTED_MAX])
