from __future__ import annotations

import pickle

from minibroker.broker.log.transaction_markers import TransactionMarker
from minibroker_protocol.control_records import EndTransactionMarker


def test_marker_request_is_sent_between_processes_as_it_is() -> None:
    request = TransactionMarker(7, 2, True, 5, 2, (("t", 0), ("t", 1)))
    assert pickle.loads(pickle.dumps(request)) == request
    assert request.marker == EndTransactionMarker(committed=True, coordinator_epoch=5)
