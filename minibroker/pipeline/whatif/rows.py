"""The outcome of a replay as rows: throttles by proposal and entity.

Owns the columns of the outcome and their meaning; it must never decide anything. Invariant: there
is one row without ``start_us`` for each proposal, broker, sender (or address) and quota type with a
bound, and one with ``start_us`` for each minute in which it was throttled; the throttles of the
minutes add up to those of the total. Kafka has only metrics of the present, ``throttle-time`` and
``queue-size``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from minibroker.broker.quotas.types import CONNECTION_CREATION_RATE
from minibroker.pipeline.whatif.addresses import Addresses
from minibroker.pipeline.whatif.columns import (
    ABANDONED,
    FIRST_MS,
    KINDS,
    LAST_MS,
    LONGEST_MS,
    RECORDED_END_MS,
    REPLAYED_END_MS,
    REQUESTS,
    THROTTLED,
    TOTAL_MS,
    Ends,
    Minutes,
    Sender,
    Tally,
)
from minibroker.pipeline.whatif.counters import MS_PER_MINUTE
from minibroker.pipeline.whatif.proposal import Proposal, Shares

OPEN, CLOSED = "open", "closed"
ROWS_MAX: Final = 65_536
"""Maximum size of an emitted batch."""

_US_PER_MS: Final = 1000

OUTCOME: Final = pa.schema(
    [
        ("proposal", pa.string()),
        ("loop", pa.string()),
        ("broker", pa.int32()),
        ("user", pa.string()),
        ("client_id", pa.string()),
        ("ip", pa.string()),
        ("quota_type", pa.string()),
        ("quota_entity", pa.string()),
        ("quota_user", pa.string()),
        ("quota_client_id", pa.string()),
        ("bound", pa.float64()),
        ("start_us", pa.int64()),
        ("requests", pa.int64()),
        ("throttled", pa.int64()),
        ("throttle_ms", pa.int64()),
        ("throttle_ms_max", pa.int64()),
        ("first_us", pa.int64()),
        ("last_us", pa.int64()),
        ("late_ms", pa.int64()),
        ("given_up", pa.int64()),
    ]
)
"""``loop`` is open or closed. ``quota_entity`` is the entity of the quota, as a path of the config
store; ``quota_user`` and ``quota_client_id`` identify the shared counter. ``requests`` were
checked, ``throttled`` of them throttled by this type alone, for ``throttle_ms`` in total.
``late_ms`` is the delay of the last request's end (closed loop). ``given_up`` counts requests that
were rejected too often, or connections that were closed. Rows of a minute, which starts at
``start_us``, have only ``throttled`` and ``throttle_ms``.
"""

KEY_COLUMNS: Final = (
    "proposal", "loop", "broker", "user", "client_id", "ip", "quota_type", "quota_entity",
    "quota_user", "quota_client_id", "bound", "start_us",
)  # fmt: skip
"""The key columns; rows with equal keys are merged by the following functions."""
SUMS: Final = ("requests", "throttled", "throttle_ms", "given_up")
MOST: Final = ("throttle_ms_max", "last_us", "late_ms")
LEAST: Final = ("first_us",)


def merged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merge rows with equal keys, as of a restarted broker."""
    whole = pa.Table.from_batches(batches, OUTCOME)
    if not len(whole):
        return
    how = {
        **dict.fromkeys(SUMS, "sum"),
        **dict.fromkeys(MOST, "max"),
        **dict.fromkeys(LEAST, "min"),
    }
    sums = whole.group_by(list(KEY_COLUMNS), use_threads=False).aggregate(list(how.items()))
    names = [f"{name}_{how[name]}" if name in how else name for name in OUTCOME.names]
    yield from sums.select(names).rename_columns(OUTCOME.names).to_batches(ROWS_MAX)


class OutcomeRows:
    """Collects rows as they become final."""

    def __init__(self, *, closed: bool) -> None:
        self._loop = CLOSED if closed else OPEN
        self._rows: list[dict[str, Any]] = []
        self._batches: list[pa.RecordBatch] = []

    def minutes(self, proposal: Proposal, senders: Sequence[Sender], minutes: Minutes) -> None:
        """Add the throttles by minute."""
        found = minutes[1 : minutes[0, 0] + 1]
        if not len(found):
            return
        groups, whose = np.unique(found[:, 0], return_inverse=True)
        who = [self._who(proposal, senders[group]) for group in groups.tolist()]
        kinds = pa.array([kind.row.config_key for kind in KINDS])
        columns = {name: pa.array([one[name] for one in who]).take(whose) for name in who[0]}
        columns["quota_type"] = kinds.take(found[:, 1])
        columns["start_us"] = pa.array(found[:, 2] * MS_PER_MINUTE * _US_PER_MS)
        columns["throttled"], columns["throttle_ms"] = map(pa.array, (found[:, 3], found[:, 4]))
        self._batches.append(_batch(columns, len(found)))

    def _who(self, proposal: Proposal, sender: Sender) -> dict[str, Any]:
        return {
            "proposal": proposal.name,
            "loop": self._loop,
            "broker": sender.broker,
            "user": sender.user,
            "client_id": sender.client_id,
        }

    def tallies(self, shares: Shares, senders: Sequence[Sender], tally: Tally, ends: Ends) -> None:
        """Add the totals of senders whose requests were checked."""
        for group, kind in np.argwhere(tally[:, :, REQUESTS]).tolist():
            tags, bound = shares.tags[group][kind], shares.bounds[group][kind]
            assert tags is not None
            assert bound is not None
            found = tally[group, kind].tolist()
            end = ends[group].tolist()
            row = {
                **self._who(shares.proposal, senders[group]),
                "quota_type": KINDS[kind].row.config_key,
                "quota_entity": bound.entity.path if bound.entity else "",
                "quota_user": tags.user,
                "quota_client_id": tags.client,
                "bound": bound.value,
                "requests": found[REQUESTS],
                "throttled": found[THROTTLED],
                "throttle_ms": found[TOTAL_MS],
                "throttle_ms_max": found[LONGEST_MS],
                **_seen(found[THROTTLED], found[FIRST_MS], found[LAST_MS]),
            }
            if self._loop == CLOSED:
                row |= {
                    "late_ms": end[REPLAYED_END_MS] - end[RECORDED_END_MS],
                    "given_up": end[ABANDONED],
                }
            self._rows.append(row)

    def addresses(self, addresses: Addresses) -> None:
        """Add the outcome of connections, after the last one."""
        proposal = addresses.proposal
        for (broker, ip), tally in addresses.tallies.items():
            who = {
                "proposal": proposal.name,
                "loop": self._loop,
                "broker": broker,
                "ip": ip,
                "quota_type": CONNECTION_CREATION_RATE,
            }
            self._rows.append(
                {
                    **who,
                    "quota_entity": f"ips/{ip if ip in proposal.ips else '<default>'}",
                    "bound": proposal.of_ip(ip),
                    "requests": tally.seen,
                    "throttled": tally.throttled,
                    "throttle_ms": tally.total_ms,
                    "throttle_ms_max": tally.longest_ms,
                    "given_up": tally.refused,
                    **_seen(tally.throttled, tally.first_ms, tally.last_ms),
                }
            )
            for minute, (count, total_ms) in sorted(tally.minutes.items()):
                at_us = minute * MS_PER_MINUTE * _US_PER_MS
                throttles = {"start_us": at_us, "throttled": count, "throttle_ms": total_ms}
                self._rows.append({**who, **throttles})

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield and remove all collected rows."""
        yield from self._batches
        self._batches.clear()
        for first in range(0, len(self._rows), ROWS_MAX):
            rows = self._rows[first : first + ROWS_MAX]
            yield pa.RecordBatch.from_pylist(rows, schema=OUTCOME)
        self._rows.clear()


def _batch(columns: dict[str, pa.Array], rows: int) -> pa.RecordBatch:
    """A batch with nulls in the missing columns."""
    return pa.RecordBatch.from_arrays(
        [
            columns[field.name].cast(field.type)
            if field.name in columns
            else pa.nulls(rows, field.type)
            for field in OUTCOME
        ],
        schema=OUTCOME,
    )


def _seen(throttled: int, first_ms: int, last_ms: int) -> dict[str, int]:
    if not throttled:
        return {}
    return {"first_us": first_ms * _US_PER_MS, "last_us": last_ms * _US_PER_MS}
