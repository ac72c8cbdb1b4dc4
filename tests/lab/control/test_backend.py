"""Requests and responses of the backend."""

from __future__ import annotations

import pytest

from minibroker.lab.control import backend as shown
from minibroker.lab.control.backend import (
    Backend,
    BackendError,
    ClockChange,
    Conflict,
    NotFound,
    TopicCreation,
    Unavailable,
)
from minibroker.lab.control.schema import InvalidJson, component, parse
from minibroker.runtime.clock import ADVANCE_MS_MAX, RATE_MAX, RATE_MIN


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BackendError("INVALID_CONFIG", "what"), 400),
        (NotFound("UNKNOWN_TOPIC_OR_PARTITION", "what"), 404),
        (Conflict("TOPIC_ALREADY_EXISTS", "what"), 409),
        (Unavailable("COORDINATOR_NOT_AVAILABLE", "what"), 503),
    ],
)
def test_backend_error_has_http_status(error: BackendError, status: int) -> None:
    assert error.status == status
    assert str(error) == f"{error.code}: what"


def test_unavailable_error_has_retry_hint() -> None:
    assert Unavailable("A", "b").hint == "Try again in a moment."


@pytest.mark.parametrize("change", [{"advance_ms": ADVANCE_MS_MAX}, {"rate": RATE_MIN}])
def test_clock_change_at_its_bounds_is_accepted(change: dict[str, float]) -> None:
    assert parse(ClockChange, change) == ClockChange(**change)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [{"advance_ms": ADVANCE_MS_MAX + 1}, {"rate": RATE_MAX + 1}])
def test_clock_change_beyond_its_bounds_is_rejected(change: dict[str, float]) -> None:
    with pytest.raises(InvalidJson, match="must be from"):
        parse(ClockChange, change)


def test_topic_creation_requires_only_name() -> None:
    assert parse(TopicCreation, {"name": "t"}) == TopicCreation("t", partitions=None, configs={})


def test_every_response_type_has_description() -> None:
    records = [each for each in vars(shown).values() if hasattr(each, "_field_defaults")]
    own = [each for each in records if each.__module__ == shown.__name__]
    assert len(own) > 20
    for record in own:
        assert component(record)["description"], record


def test_fake_backend_implements_protocol(backend: Backend) -> None:
    asked = {name for name in vars(Backend) if not name.startswith("_")}
    assert asked <= set(dir(backend))
