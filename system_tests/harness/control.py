"""minibroker's HTTP control API as the tests use it, through the standard library alone.

It owns requests, patience with a controller that is being restarted, and the shape of the little
that tests read. The invariant: an answer that is not 2xx is an error with its body in the text.
"""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from typing import Any, NamedTuple

from system_tests.harness.brokers import RunningBroker
from system_tests.harness.waiting import PATIENCE_S, wait_until

# The status of a health response, which is complete, while a process restarts.
NOT_READY = 503


class Process(NamedTuple):
    name: str
    pid: int | None
    restarts: int


def ask(broker: RunningBroker, method: str, path: str, body: object = None) -> Any:
    """Send one request and return the decoded answer; raises `urllib.error.URLError`."""
    assert broker.control_url is not None, f"{broker.kind} has no control API"
    request = urllib.request.Request(
        broker.control_url.rstrip("/") + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            content = answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            content = refused.read()
            if refused.code != NOT_READY or path != "/v1/health":
                raise AssertionError(f"{method} {path}: {content.decode()}") from refused
    return json.loads(content) if content else None


def processes(broker: RunningBroker) -> dict[str, Process]:
    """Return every process of the broker by name; waits while the controller is away."""

    def look() -> Any:
        try:
            return ask(broker, "GET", "/v1/health")
        except OSError:
            return None

    health = wait_until(look, "the control API to answer")
    return {
        each["name"]: Process(each["name"], each["pid"], each["restarts"])
        for each in health["processes"]
    }


def pids_by_name(broker: RunningBroker) -> dict[str, int]:
    """Return the pid of each process by the name of its first role; two roles may share one."""
    found: dict[int, str] = {}
    for each in processes(broker).values():
        if each.pid is not None:
            found.setdefault(each.pid, each.name)
    return {name: pid for pid, name in found.items()}


def is_ready(broker: RunningBroker) -> bool:
    try:
        return bool(ask(broker, "GET", "/v1/health")["ready"])
    except OSError:
        return False


def kill_process(broker: RunningBroker, name: str) -> None:
    """SIGKILL one process of a broker, and wait until all are ready again."""
    pid = processes(broker)[name].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_ready(broker)


def wait_ready(broker: RunningBroker) -> None:
    wait_until(lambda: is_ready(broker), "every process to be ready")
