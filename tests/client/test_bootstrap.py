from __future__ import annotations

import subprocess
import sys

import pytest

from minibroker.broker.settings import HostPort
from minibroker.client.bootstrap import (
    DEFAULT_BOOTSTRAP,
    PLAINTEXT,
    BootstrapServers,
    parse_bootstrap,
)
from minibroker.client.errors import InvalidArgument


def test_bootstrap_servers_default_to_local_plaintext() -> None:
    assert BootstrapServers() == (DEFAULT_BOOTSTRAP, PLAINTEXT)
    assert PLAINTEXT == (None, None, None)


def test_bootstrap_module_does_not_import_ssl() -> None:
    code = "import sys, minibroker.client.bootstrap; print('ssl' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


def test_bootstrap_servers_without_port_raise_with_an_example() -> None:
    assert parse_bootstrap("a:1, b:2") == [HostPort("a", 1), HostPort("b", 2)]
    with pytest.raises(InvalidArgument, match=r"bootstrap server 'localhost': .*127\.0\.0\.1:9092"):
        parse_bootstrap("localhost")
