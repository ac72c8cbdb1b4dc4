"""The exception of an interceptor that closes a connection."""

from __future__ import annotations

import subprocess
import sys

from minibroker.broker.network.interception import InterceptorDisconnect


def test_text_is_the_reason() -> None:
    assert str(InterceptorDisconnect("rule 1")) == "rule 1"


def test_module_imports_no_rules() -> None:
    program = (
        "import sys, minibroker.broker.network.interception\n"
        "sys.exit(any(name.startswith('minibroker.lab') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
