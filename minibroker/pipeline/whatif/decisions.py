"""The replayed decision for each request, next to the recorded one.

Owns the columns of decisions; it must never decide anything. Invariant: one row for each request
and proposal, which ``broker`` and ``sequence`` link to the activity table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from minibroker.pipeline.whatif.events import KINDS
from minibroker.pipeline.whatif.replay import Replay
from minibroker.pipeline.whatif.rows import CLOSED, OPEN

_KEYS: Final = [kind.row.config_key for kind in KINDS]
_ASKED: Final = [f"{key}_ms" for key in _KEYS]

DECISIONS: Final = pa.schema(
    [
        ("proposal", pa.string()),
        ("loop", pa.string()),
        ("broker", pa.int32()),
        ("sequence", pa.int64()),
        ("quota_type", pa.string()),
        ("throttle_ms", pa.int64()),
        ("recorded_ms", pa.int64()),
        *((name, pa.int64()) for name in _ASKED),
    ]
)
"""``throttle_ms`` is the replayed throttle time, caused by ``quota_type``; ``recorded_ms`` is the
recorded one. The other columns are the throttle times of each quota type alone, null if it was not
checked.
"""

DECISIONS_DDL: Final = ", ".join(
    f"{field.name} { ({'string': 'string', 'int32': 'int'}.get(str(field.type), 'bigint')) }"
    for field in DECISIONS
)
"""The same for Spark."""


def decision_batches(run: Replay) -> Iterator[pa.RecordBatch]:
    """The decisions of a replay since the last call."""
    keys = pa.array(_KEYS)
    brokers = np.array([sender.broker for sender in run.senders.all], np.int32)
    for proposal, requests, answers in run.answered:
        rows = len(requests.ms)
        held, asked = answers.held, answers.asked
        columns = [
            pa.array([proposal.name]).take(np.zeros(rows, np.int64)),
            pa.array([CLOSED if run.closed else OPEN]).take(np.zeros(rows, np.int64)),
            pa.array(brokers[requests.group]),
            pa.array(requests.sequence),
            keys.take(pa.array(np.maximum(held[:, 1], 0), mask=held[:, 1] < 0)),
            pa.array(held[:, 0]),
            pa.array(requests.held_ms.astype(np.int64)),
            *(pa.array(asked[:, at], mask=asked[:, at] < 0) for at in range(len(KINDS))),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=DECISIONS)
    run.answered.clear()
