"""The servers of a command, and how it authenticates there."""

from __future__ import annotations

import subprocess
import sys

from minibroker.cli.servers import DEFAULT_BOOTSTRAP, OPEN, Servers


def test_servers_are_by_default_the_local_broker_without_tls_and_sasl() -> None:
    assert Servers() == (DEFAULT_BOOTSTRAP, OPEN)
    assert OPEN == (None, None, None)


def test_servers_load_no_tls() -> None:
    code = "import sys, minibroker.cli.servers; print('ssl' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
