from __future__ import annotations

from collections.abc import Iterator

import pytest

from minibroker.testing import ControlError, MiniBroker
from minibroker.testing.control import Control


@pytest.fixture
def control(minibroker: MiniBroker) -> Iterator[Control]:
    control = Control(minibroker.control_url)
    yield control
    control.close()


def test_an_answer_is_the_json_it_holds(control: Control) -> None:
    assert control.get("v1", "health")["ready"] is True


def test_parts_of_a_path_are_quoted(control: Control) -> None:
    with pytest.raises(ControlError) as caught:
        control.get("v1", "topics", "a/b?c")
    assert caught.value.code == "UNKNOWN_TOPIC_OR_PARTITION"


def test_none_values_are_omitted(control: Control, minibroker_topic: str) -> None:
    with pytest.raises(ControlError, match="TOPIC_ALREADY_EXISTS") as caught:
        control.post("v1", "topics", name=minibroker_topic, partitions=None)
    assert caught.value.status == 409


def test_a_refusal_carries_the_hint(control: Control) -> None:
    with pytest.raises(ControlError, match="advance_ms"):
        control.post("v1", "clock", advance_ms="soon")


def test_a_connection_that_the_server_closed_is_made_anew(control: Control) -> None:
    control.get("v1", "health")
    assert control._connection is not None
    control._connection.sock.shutdown(2)
    assert control.get("v1", "health")["ready"] is True
