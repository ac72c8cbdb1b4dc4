"""The control API's server: late imports, and errors at its start."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Sequence

import pytest
import trio

from minibroker.lab.control.operation import ApiOperation
from minibroker.lab.control.serve import (
    LOAD_RETRY_S,
    listener_url,
    open_listener,
    serve,
    token_for,
)


@pytest.mark.parametrize(
    ("module", "late"),
    [
        ("minibroker.lab.control.serve", {"starlette", "h11", "anyio", "prometheus_client"}),
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
                "minibroker.broker.security.oauth",
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
from minibroker.lab.control.serve import open_listener, serve

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
