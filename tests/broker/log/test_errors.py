from __future__ import annotations

import pickle

from minibroker.broker.log.errors import LogError
from minibroker_protocol.errors import ErrorCode


def test_log_error_can_be_pickled() -> None:
    error = LogError(ErrorCode.CORRUPT_MESSAGE, "why")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.code, copy.text, str(copy)) == (2, "why", "CORRUPT_MESSAGE: why")
