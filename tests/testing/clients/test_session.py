from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from minibroker.testing.clients.session import (
    ClientFailure,
    ClientLibrary,
    ClientOptions,
    ClientSession,
    ConsumedRecord,
    partition_of,
    serve,
)

OPTIONS = ClientOptions("localhost:1", 0, "id")


class FakeLibrary(ClientLibrary):
    """Notes calls, and fails those that a test lists."""

    name = "fake 1.0"

    def __init__(self, options: ClientOptions) -> None:
        super().__init__(options)
        self.calls: list[object] = []
        self.failing: dict[str, bool] = {}
        """Calls that fail, and whether they definitely had no effect."""
        self.records: list[ConsumedRecord] = []

    def _call(self, name: str, *arguments: object) -> None:
        self.calls.append((name, *arguments) if arguments else name)
        if name in self.failing:
            raise ClientFailure(f"{name} failed", definite=self.failing[name])

    def open_producer(self) -> None:
        self._call("open_producer")

    def open_consumer(self) -> None:
        self._call("open_consumer")

    def assign(self, positions: Mapping[str, int]) -> None:
        self._call("assign", dict(positions))

    def subscribe(self, topics: list[str]) -> None:
        self._call("subscribe", *topics)

    def poll(self) -> Iterable[ConsumedRecord]:
        self._call("poll")
        return self.records

    def send(self, topic: str, partition: int, value: bytes) -> int | None:
        self._call("send", topic, partition, value)
        return 7

    def begin(self) -> None:
        self._call("begin")

    def commit(self) -> None:
        self._call("commit")

    def abort(self) -> None:
        self._call("abort")

    def close(self) -> None:
        self._call("close")


def session_of(options: ClientOptions = OPTIONS) -> tuple[FakeLibrary, ClientSession]:
    library = FakeLibrary(options)
    session = ClientSession(library)
    library.calls.clear()
    return library, session


def txn(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"process": 0, "type": "invoke", "operation": "txn", "steps": list(steps), **fields}


SEND = {"send": "a-0", "value": 3}
POLL: dict[str, Any] = {"poll": {}}


def test_key_is_split_into_topic_and_partition() -> None:
    assert partition_of("a-b-12") == ("a-b", 12)


def test_committed_transaction_is_ok() -> None:
    library, session = session_of()
    library.records = [ConsumedRecord("b-0", 4, b"9")]
    done = session.perform(txn(SEND, POLL))
    assert done["type"] == "ok"
    assert done["steps"] == [{**SEND, "offset": 7}, {"poll": {"b-0": [[4, 9]]}}]
    assert library.calls == ["begin", ("send", "a", 0, b"3"), "poll", "commit"]


def test_transaction_to_abort_fails() -> None:
    library, session = session_of()
    done = session.perform(txn(SEND, abort=True))
    assert done["type"] == "fail"
    assert "abort" not in done
    assert library.calls[-1] == "abort"


def test_transaction_whose_send_fails_is_aborted() -> None:
    library, session = session_of()
    library.failing = {"send": False}
    done = session.perform(txn(SEND))
    assert (done["type"], done["error"]) == ("fail", "send failed")
    assert library.calls[-1] == "abort"


def test_producer_that_cannot_abort_is_replaced() -> None:
    library, session = session_of()
    library.failing = {"begin": True, "abort": True}
    assert session.perform(txn(SEND))["type"] == "fail"
    assert library.calls == ["begin", "abort", "open_producer"]


@pytest.mark.parametrize(
    ("definite", "result", "last"), [(False, "unknown", "open_producer"), (True, "fail", "abort")]
)
def test_failed_commit_is_unknown_unless_it_is_definite(
    definite: bool, result: str, last: str
) -> None:
    library, session = session_of()
    library.failing = {"commit": definite}
    assert session.perform(txn(SEND))["type"] == result
    assert library.calls[-1] == last


@pytest.mark.parametrize(("definite", "result"), [(False, "unknown"), (True, "fail")])
def test_failed_send_is_unknown_unless_it_is_definite(definite: bool, result: str) -> None:
    library, session = session_of()
    library.failing = {"send": definite}
    assert session.perform({**txn(SEND), "operation": "send"})["type"] == result


def test_consumer_goes_back_after_a_failed_operation() -> None:
    library, session = session_of()
    assign = {"process": 0, "type": "invoke", "operation": "assign", "keys": ["a-0", "b-0"]}
    assert session.perform(assign)["type"] == "ok"
    library.records = [ConsumedRecord("a-0", 4, b"9")]
    session.perform({**txn(POLL), "operation": "poll"})
    library.records = [ConsumedRecord("a-0", 5, b"10")]
    library.calls.clear()
    assert session.perform(txn(POLL, abort=True))["type"] == "fail"
    assert library.calls[-1] == ("assign", {"a-0": 5, "b-0": 0})


def test_assignment_keeps_positions_unless_it_starts_at_the_beginning() -> None:
    library, session = session_of()
    assign = {"process": 0, "type": "invoke", "operation": "assign", "keys": ["a-0"]}
    session.perform(assign)
    library.records = [ConsumedRecord("a-0", 4, b"9")]
    session.perform({**txn(POLL), "operation": "poll"})
    session.perform(assign)
    assert library.calls[-1] == ("assign", {"a-0": 5})
    session.perform({**assign, "from_beginning": True})
    assert library.calls[-1] == ("assign", {"a-0": 0})


def test_keys_of_a_rebalance_are_reported_once() -> None:
    library, session = session_of(OPTIONS._replace(group="g"))
    session.perform({"process": 0, "type": "invoke", "operation": "subscribe", "keys": ["a-0"]})
    assert library.calls == [("subscribe", "a")]
    library.moved = {"a-1", "a-0"}
    poll = {**txn(POLL), "operation": "poll"}
    assert session.perform(poll)["rebalanced"] == ["a-0", "a-1"]
    assert "rebalanced" not in session.perform(poll)


def test_failed_poll_is_no_result() -> None:
    library, session = session_of()
    library.failing = {"poll": False}
    assert session.perform({**txn(POLL), "operation": "poll"})["type"] == "fail"


def test_reopened_process_has_new_clients() -> None:
    library, session = session_of()
    done = session.perform({"process": 0, "type": "invoke", "operation": "reopen"})
    assert done["type"] == "ok"
    assert library.calls == ["open_consumer", "open_producer"]
    library.failing = {"open_consumer": False}
    done = session.perform({"process": 0, "type": "invoke", "operation": "reopen"})
    assert (done["type"], done["error"]) == ("unknown", "open_consumer failed")


def test_lines_are_served_until_their_end() -> None:
    lines = [{"bootstrap_servers": "x:1", "process": 2}, txn(SEND)]
    answers = io.StringIO()
    serve(FakeLibrary, io.StringIO("".join(json.dumps(line) + "\n" for line in lines)), answers)
    first, second = map(json.loads, answers.getvalue().splitlines())
    assert first == {"client": "fake 1.0"}
    assert second["type"] == "ok"
