"""What comes too late, by either epoch."""

from __future__ import annotations

import pytest

from minibroker.broker.apis.control_requests import broker_epoch_problem, controller_epoch_problem
from minibroker.broker.metadata.image import Image
from minibroker_protocol.errors import ErrorCode

IMAGE = Image(controller_epoch=5)


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (-1, ErrorCode.NONE),
        (0, ErrorCode.STALE_BROKER_EPOCH),
        (4, ErrorCode.STALE_BROKER_EPOCH),
        (5, ErrorCode.NONE),
        (2**63 - 1, ErrorCode.NONE),
    ],
)
def test_stale_broker_epoch_is_rejected(epoch: int, error: ErrorCode) -> None:
    assert broker_epoch_problem(IMAGE, epoch) is error


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (-1, ErrorCode.STALE_CONTROLLER_EPOCH),
        (4, ErrorCode.STALE_CONTROLLER_EPOCH),
        (5, ErrorCode.NONE),
        (2**31 - 1, ErrorCode.NONE),
    ],
)
def test_stale_controller_epoch_is_rejected(epoch: int, error: ErrorCode) -> None:
    assert controller_epoch_problem(IMAGE, epoch) is error
