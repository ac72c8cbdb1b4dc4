from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from minibroker.client.control import IDLE_CONNECTIONS_MAX, Control
from minibroker.testing import ControlError, MiniBroker


@pytest.fixture
def control(minibroker: MiniBroker) -> Iterator[Control]:
    control = Control(minibroker.control_url)
    yield control
    control.close()


def test_response_body_is_decoded_as_json(control: Control) -> None:
    assert control.get("v1", "health")["ready"] is True


def test_path_segments_are_quoted(control: Control) -> None:
    with pytest.raises(ControlError) as caught:
        control.get("v1", "topics", "a/b?c")
    assert caught.value.code == "UNKNOWN_TOPIC_OR_PARTITION"


def test_none_values_are_omitted(control: Control, minibroker_topic: str) -> None:
    with pytest.raises(ControlError, match="TOPIC_ALREADY_EXISTS") as caught:
        control.post("v1", "topics", name=minibroker_topic, partitions=None)
    assert caught.value.status == 409


def test_error_response_raises_with_hint(control: Control) -> None:
    with pytest.raises(ControlError) as caught:
        control.post("v1", "topics", name="")
    assert str(caught.value) == (  # The same in the packages for Node.js, Java and Go.
        "INVALID_REQUEST: name: must have 1 to 249 characters, not 0."
        " GET /openapi.json describes every body."
    )


def test_error_response_without_hint_raises_one_sentence(control: Control) -> None:
    with pytest.raises(ControlError) as caught:
        control.get("v1", "topics", "none")
    assert str(caught.value).endswith(": there is no topic 'none'.")


def test_closed_connection_is_reopened(control: Control) -> None:
    control.get("v1", "health")
    (idle,) = control._idle
    idle.sock.shutdown(2)
    assert control.get("v1", "health")["ready"] is True


def test_calls_at_the_same_time_keep_few_connections(control: Control) -> None:
    with ThreadPoolExecutor(20) as threads:
        calls = [threads.submit(control.get, "v1", "health") for _ in range(100)]
    assert all(each.result()["ready"] for each in calls)
    assert 1 <= len(control._idle) <= IDLE_CONNECTIONS_MAX
