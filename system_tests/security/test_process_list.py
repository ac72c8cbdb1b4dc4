"""Secrets that are given to a broker are not shown to other users of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from system_tests.harness.brokers import start_minibroker
from system_tests.harness.processes import tree

pytestmark = pytest.mark.minibroker

SECRET = "wonderland-8271"
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SETTINGS = {"sasl.enabled.mechanisms": "PLAIN"}
NAME = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
LISTENER = "SASL_PLAINTEXT://127.0.0.1:0"


def shown(pid: int) -> bytes:
    """Return what the kernel shows of a process and all its child processes."""
    return b"\n".join(Path(f"/proc/{each}/cmdline").read_bytes() for each in tree(pid))


@pytest.mark.parametrize("given", [f'user_alice="{SECRET}";', 'user_alice="${env:SECRET}";'])
def test_password_is_in_the_arguments_of_no_process(given: str) -> None:
    with start_minibroker(
        settings={**SETTINGS, NAME: f"{JAAS} {given}"},
        listener=LISTENER,
        environment={"SECRET": SECRET},
    ) as broker:
        listed = shown(broker.pid)
        assert b"minibroker" in listed
        assert SECRET.encode() not in listed
