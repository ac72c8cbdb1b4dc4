"""Masking of secrets in the process list."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from pathlib import Path
from minibroker.cli.arguments import mask_arguments
mask_arguments(sys.argv[1:3])
print(Path("/proc/self/cmdline").read_bytes().decode().split("\\0")[-6:-1])
print(sys.argv[1:])
"""


def test_masked_arguments_are_hidden_only_from_the_process_list() -> None:
    arguments = ["pass=wonderländ", "a=p", "--set=pass=wonderländ", "--set=a=p", "kept, open"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True
    )
    shown, kept = done.stdout.splitlines()
    mask = "*" * len("wonderländ".encode())
    assert shown == str([f"pass={mask}", "a=*", f"--set=pass={mask}", "--set=a=*", "kept, open"])
    assert kept == str(arguments)
