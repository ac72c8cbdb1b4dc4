from __future__ import annotations

import json
import subprocess

from minibroker.python_command import python_command
from minibroker.testing import MiniBroker
from minibroker.testing.proxy import PROGRAM


def started(line: bytes) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        python_command(PROGRAM), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(line)
    process.stdin.flush()
    return process


def test_process_ends_with_its_standard_input(minibroker: MiniBroker) -> None:
    options = {
        "upstream": minibroker.bootstrap_servers,
        "listener": "127.0.0.1:0",
        "command_config": None,
    }
    with started(json.dumps(options).encode() + b"\n") as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert json.loads(process.stdout.readline())["event"] == "ready"
        process.stdin.close()
        assert process.wait(30) == 0


def test_process_without_options_ends() -> None:
    with started(b"") as process:
        output, _ = process.communicate(timeout=30)
        assert (output, process.returncode) == (b"", 0)


def test_invalid_options_are_named() -> None:
    options = {"upstream": "kafka:9092", "listener": "here"}
    with started(json.dumps(options).encode() + b"\n") as process:
        output, _ = process.communicate(timeout=30)
    assert json.loads(output)["text"].startswith("must be host:port")
