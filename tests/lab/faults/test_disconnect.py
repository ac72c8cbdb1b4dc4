"""The exception of a rule that closes a connection."""

from __future__ import annotations

import subprocess
import sys

from minibroker.lab.faults.disconnect import FaultDisconnect


def test_text_is_the_rule() -> None:
    assert str(FaultDisconnect("rule 1")) == "rule 1"


def test_module_imports_no_rules() -> None:
    program = (
        "import sys, minibroker.lab.faults.disconnect\n"
        "sys.exit('minibroker.lab.faults.rules' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
