"""Changes of log levels: of existing loggers of this broker, to Kafka's levels."""

from __future__ import annotations

import pytest

from minibroker.broker.metadata.image import BROKER_LOGGER, ConfigChanged, Image, apply
from minibroker.broker.metadata.loggers import DELETE, SET, plan_levels
from minibroker.broker.metadata.topics import ChangeRejected
from minibroker.broker.settings import Settings
from minibroker_protocol.errors import ErrorCode

SETTINGS = Settings.from_sources()
STORAGE = "minibroker.storage"


def plan(
    *operations: tuple[str, int, str | None], name: str = "1", image: Image | None = None
) -> ConfigChanged | ChangeRejected:
    return plan_levels(image or Image(), SETTINGS, name, operations)


def test_levels_are_set_and_unset() -> None:
    changed = plan(("root", SET, "WARN"), (STORAGE, SET, "TRACE"))
    assert changed == ConfigChanged(BROKER_LOGGER, "1", {"root": "WARN", STORAGE: "TRACE"})
    assert isinstance(changed, ConfigChanged)
    image = apply(Image(), changed)
    unset = plan((STORAGE, DELETE, None), image=image)
    assert unset == ConfigChanged(BROKER_LOGGER, "1", {"root": "WARN"})


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (("root", SET, "LOUD"), ErrorCode.INVALID_CONFIG),
        (("root", SET, "info"), ErrorCode.INVALID_CONFIG),
        (("root", DELETE, None), ErrorCode.INVALID_REQUEST),
        (("root", 2, "INFO"), ErrorCode.INVALID_REQUEST),
        (("none", SET, "INFO"), ErrorCode.INVALID_CONFIG),
        (("none", DELETE, None), ErrorCode.INVALID_CONFIG),
    ],
)
def test_invalid_level_is_rejected(
    operation: tuple[str, int, str | None], error: ErrorCode
) -> None:
    refused = plan(operation)
    assert isinstance(refused, ChangeRejected)
    assert refused.code == error


@pytest.mark.parametrize("name", ["", "2", "one"])
def test_loggers_of_another_broker_are_rejected(name: str) -> None:
    refused = plan(("root", SET, "INFO"), name=name)
    assert isinstance(refused, ChangeRejected)
    assert refused.code == ErrorCode.INVALID_REQUEST
