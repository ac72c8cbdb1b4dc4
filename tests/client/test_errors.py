from __future__ import annotations

import pytest

from minibroker.client.errors import BrokerError, check
from minibroker_protocol.errors import ErrorCode


def test_check_without_error_code_does_not_raise() -> None:
    check("topic cats", 0)


def test_check_with_error_code_raises_its_name() -> None:
    with pytest.raises(BrokerError, match=r"^topic cats: UNKNOWN_TOPIC_OR_PARTITION$") as caught:
        check("topic cats", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_check_with_message_includes_it() -> None:
    with pytest.raises(
        BrokerError, match=r"^topic cats: INVALID_PARTITIONS: must be larger than 0$"
    ):
        check("topic cats", ErrorCode.INVALID_PARTITIONS, "must be larger than 0")
