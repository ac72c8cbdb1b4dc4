from __future__ import annotations

import random

from minibroker.pipeline.whatif.decisions import decision_batches
from minibroker.pipeline.whatif.proposal import Counting
from minibroker.pipeline.whatif.replay import Replay
from minibroker.quotas.types import CLIENT_QUOTA_KEYS
from tests.pipeline.whatif import drawn, oracle
from tests.pipeline.whatif.activity import requests_table


def test_every_request_has_its_decision_once() -> None:
    chance = random.Random(5)
    proposal, events = drawn.proposal(chance), drawn.events(chance, 400)
    run = Replay([proposal], Counting(), answers=True)
    run.feed(requests_table(events))
    rows = {row["sequence"]: row for batch in decision_batches(run) for row in batch.to_pylist()}
    assert list(decision_batches(run)) == []
    wanted = oracle.open_loop(events, proposal, Counting())
    for event in events:
        row, (ms, kind) = rows[event.sequence], wanted[event.sequence]
        assert (row["broker"], row["throttle_ms"], row["recorded_ms"]) == (event.broker, ms, 0)
        asked = {key: row[f"{key}_ms"] for key in CLIENT_QUOTA_KEYS}
        if ms:
            assert CLIENT_QUOTA_KEYS[row["quota_type"]] is kind
            assert asked[row["quota_type"]] == ms
        if not event.unheld:
            assert max(asked.values(), default=0, key=lambda each: each or 0) in (ms, None, 0)
