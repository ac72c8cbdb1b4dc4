"""The process of a ``MiniProxy``: a proxy that ends when its standard input does.

Owns the exchange with the test's process: options on standard input, one line of JSON on standard
output. It must never outlive that process. Invariant: it prints exactly one line, that it is ready
or why it cannot start.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import trio

from minibroker.broker.settings.setting import BadValueError
from minibroker.client.connection import parse_bootstrap
from minibroker.client.errors import ClientError
from minibroker.lab.control.proxy import (
    ProxyOptions,
    ProxyStartError,
    parse_listener,
    run_proxy,
)
from minibroker.ready import ProxyReady, as_json
from minibroker.secured import read_files


def main() -> None:
    """Run a proxy with the options in the first line of standard input, until it ends."""
    line = sys.stdin.readline()
    if not line:
        return
    given = json.loads(line)
    try:
        folder = given.get("security_dir")
        listener = parse_listener(given["listener"], has_tls=folder is not None)
        tls = None
        if given["command_config"] is not None:
            from minibroker.client.security import read_tls

            tls = read_tls(given["command_config"])
        secured = None if folder is None else read_files(Path(folder))
        options = ProxyOptions(
            parse_bootstrap(given["upstream"]), listener, upstream_tls=tls, secured=secured
        )
        trio.run(run_proxy, options, _wait_for_end, _say_ready)
    except (ClientError, BadValueError, ProxyStartError) as error:
        _say(json.dumps({"event": "failed", "text": str(error)}))


def _say_ready(ready: ProxyReady) -> None:
    _say(as_json(ready))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def _wait_for_end() -> None:
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stream:
        while await stream.receive_some():
            pass
