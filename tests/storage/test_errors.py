from __future__ import annotations

import pickle

from minibroker.storage.errors import LogError
from protocol.errors import ErrorCode


def test_log_error_can_be_pickled() -> None:
    error = LogError(ErrorCode.CORRUPT_MESSAGE, "why")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.code, copy.text, str(copy)) == (2, "why", "CORRUPT_MESSAGE: why")
