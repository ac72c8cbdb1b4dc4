"""What is attached to the controller role when it starts."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.log.data_directory import FAULT_RULES_FILE
from minibroker.broker.roles.metadata_publisher import MetadataPublisher
from minibroker.broker.settings import Settings
from minibroker.lab.control.attach import (
    LOAD_RETRY_S,
    attach_control,
    listener_url,
    open_listener,
    serve,
    token_for,
)
from minibroker.lab.control.broker import ControlledBroker
from minibroker.lab.control.operation import ApiOperation
from minibroker.lab.control.operations import OPERATIONS
from minibroker.lab.faults.actions import Hold, Observe
from minibroker.lab.faults.fault_rule import FaultHold, FaultRule
from minibroker.lab.faults.matching import Candidate
from minibroker.lab.observers.messages import (
    FaultAct,
    FaultHeld,
    FaultMatched,
    FaultRules,
    JournalSwitch,
)
from tests.lab.control.running_broker import At

# ---------------------------------- The control API's server: late imports, and errors at its start


@pytest.mark.parametrize(
    ("module", "late"),
    [
        ("minibroker.lab.control.attach", {"starlette", "h11", "anyio", "prometheus_client"}),
        ("minibroker.broker.metrics.metrics", {"trio", "prometheus_client", "construct"}),
        ("minibroker.lab.control.http", {"prometheus_client", "h11"}),
        (
            "minibroker.launch",
            {
                "minibroker.lab.control.broker_faults",
                "minibroker.lab.control.http",
                "minibroker.lab.control.journal_collector",
                "minibroker.lab.control.operation",
                "minibroker.lab.control.operations",
                "minibroker.lab.control.processes",
                "minibroker.lab.control.topics",
                "minibroker.broker.quotas.explain",
                "minibroker.lab.observers.recorder",
                "minibroker.broker.network.sasl",
                "difflib",
                "kazoo",
                "starlette",
            },
        ),
    ],
)
def test_process_import_does_not_load_modules_of_other_processes(
    module: str, late: set[str]
) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert late & set(run.stdout.split()) == set()


def test_listen_address_in_use_raises_readable_error() -> None:
    with open_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(OSError, match="already in use") as caught:
            open_listener("127.0.0.1", port)
    words = f"the control API can't listen on 127.0.0.1:{port}: Address already in use"
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("host", "given", "is_created"),
    [
        ("127.0.0.1", None, False),
        ("::1", None, False),
        ("0.0.0.0", None, True),
        ("0.0.0.0", "", False),
        ("0.0.0.0", "mine", False),
        ("127.0.0.1", "mine", False),
    ],
)
def test_token_is_created_if_other_hosts_can_connect(
    host: str, given: str | None, is_created: bool
) -> None:
    with open_listener(host, 0) as listener:
        token, other = token_for(listener, given), token_for(listener, given)
        assert (token != other and len(token) > 20) == is_created
        if not is_created:
            assert token == (given or "")
        assert token in listener_url(listener, token)


def test_serve_imports_web_framework_with_the_first_request() -> None:
    code = """
import sys, trio, trio.testing
from minibroker.lab.control.attach import open_listener, serve

async def main():
    with open_listener("127.0.0.1", 0) as listener:
        async with trio.open_nursery() as nursery:
            stopping = trio.Event()
            await nursery.start(serve, None, listener, stopping)
            await trio.testing.wait_all_tasks_blocked()
            print({"starlette", "h11"} & set(sys.modules))
            stopping.set()

trio.run(main)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "no files"), ImportError("no files")])
async def test_failed_load_of_control_api_is_retried(error: Exception) -> None:
    tries: list[float] = []

    class Context:
        @property
        def operations(self) -> Sequence[ApiOperation]:
            if len(tries) < 2:
                raise error
            raise KeyError("it is loaded")

    async def sleep(seconds: float) -> None:
        tries.append(seconds)

    with open_listener("127.0.0.1", 0) as listener:
        async with await trio.open_tcp_stream(*listener.getsockname()[:2]):
            with pytest.raises(KeyError, match="it is loaded"):
                await serve(Context(), listener, trio.Event(), sleep=sleep)
    assert tries == [LOAD_RETRY_S] * 2


ON = Settings.from_sources(pairs=["journal.enable=true"])


@asynccontextmanager
async def attached(at: At, **changes: Any) -> AsyncIterator[ControlledBroker]:
    """A controller with such an environment, to which the control API is attached."""
    env, scope = replace(at.env, **changes), at.scope
    publisher = MetadataPublisher(lambda: scope.image, lambda _: None, scope.image.number)
    async with trio.open_nursery() as nursery:
        yield attach_control(env, scope, publisher, nursery)
        nursery.cancel_scope.cancel()


def further(broker: ControlledBroker, role: str) -> list[object]:
    """What a role must handle when it registers."""
    requests = [ask(role) for ask in broker.publisher.further]
    return [request for request in requests if request is not None]


async def test_requests_of_roles_about_faults_are_handled(at: At) -> None:
    async with attached(at) as broker:
        handlers: dict[type, Callable[[Any], Any]] = broker.publisher.handlers
        assert "faults" not in vars(broker)
        matched = FaultMatched((Candidate("held", None),))
        assert await handlers[FaultMatched](matched) == ()
        await broker.faults.add(FaultRule(Hold(), name="held"))
        (fired,) = await handlers[FaultMatched](matched)
        assert fired.rule_id == "held"
        async with trio.open_nursery() as nursery:
            held = FaultHeld("held", fired.releases, FaultHold("processor-0"))
            nursery.start_soon(handlers[FaultHeld], held)
            await wait_all_tasks_blocked()
            assert broker.faults.register.release("held") == 1
        await handlers[FaultAct](FaultAct("removed"))


async def test_rules_of_a_killed_controller_are_there_before_roles_register(at: At) -> None:
    async with attached(at) as first:
        await first.faults.add(FaultRule(Observe(), name="seen"))
    assert (at.env.data_dir / FAULT_RULES_FILE).exists()
    async with attached(at, incarnation=2) as second:
        (rules,) = further(second, "worker")
        assert isinstance(rules, FaultRules)
        assert further(second, "acceptor") == []
        assert [each.id for each in rules.added] == ["seen"]


@pytest.mark.parametrize(
    ("changes", "is_on"),
    [
        ({}, False),
        ({"settings": ON}, True),
        ({"settings": ON, "incarnation": 2}, False),
    ],
)
async def test_journal_begins_with_the_first_controller_if_it_is_enabled(
    at: At, changes: dict[str, Any], is_on: bool
) -> None:
    async with attached(at, **changes) as broker:
        assert ("journal" in vars(broker)) is is_on
        assert further(broker, "acceptor") == ([JournalSwitch(True)] if is_on else [])


async def test_journal_that_was_on_continues_in_the_next_controller(at: At) -> None:
    async with attached(at, settings=ON):
        pass
    async with attached(at, incarnation=2) as broker:
        assert further(broker, "worker") == [JournalSwitch(True)]


async def test_control_api_is_served_on_the_listener(at: At, autojump_clock: MockClock) -> None:
    with open_listener("127.0.0.1", 0) as listener:
        async with attached(at, control=listener) as broker:
            assert broker.operations == OPERATIONS
            autojump_clock.autojump_threshold = float("inf")  # Its client is a real socket.
            async with await trio.open_tcp_stream(*listener.getsockname()[:2]) as stream:
                await stream.send_all(b"GET /v1/clock HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
