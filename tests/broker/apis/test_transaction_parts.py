"""Parts of AddPartitionsToTxn: a partition leader's client has transaction version 2."""

from __future__ import annotations

import pickle

from minibroker.broker.apis.transaction_parts import PartitionsToAdd


def test_part_is_plain_data_of_transaction_version_2() -> None:
    part = PartitionsToAdd("x", 1, 0, True, (("t", 0),))
    assert pickle.loads(pickle.dumps(part)) == part
    assert part.client_version == 2
