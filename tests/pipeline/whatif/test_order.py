from __future__ import annotations

import numpy as np

from minibroker.pipeline.whatif.columns import Senders, requests_of
from minibroker.pipeline.whatif.order import in_order, pick
from tests.pipeline.whatif.activity import requests_table
from tests.pipeline.whatif.oracle import Event

EVENTS = [Event(3, 12, "u"), Event(1, 11, "v"), Event(2, 11, "u"), Event(0, 11, "w")]


def test_only_senders_sharing_a_counter_are_sorted() -> None:
    requests = requests_of(requests_table(EVENTS), Senders(), delays=False)
    alone = in_order(requests, [0, 1, 2])
    assert alone.sequence.tolist() == [1, 0, 2, 3]
    assert in_order(requests, [0, 0, 0]).sequence.tolist() == [0, 1, 2, 3]
    assert in_order(requests, [0, 1, 0]).sequence.tolist() == [1, 0, 2, 3]


def test_sorted_requests_are_returned_unchanged() -> None:
    requests = requests_of(requests_table(EVENTS[1:3]), Senders(), delays=False)
    assert in_order(requests, [0, 0]) is requests
    assert in_order(requests, [0, 1]) is requests


def test_some_are_picked_with_all_their_columns() -> None:
    requests = requests_of(requests_table(EVENTS), Senders(), delays=False)
    found = pick(requests, np.array([1]))
    assert [len(column) for column in found] == [1] * len(found)
    assert found.sequence.tolist() == [1]
