"""What a broker says when it is ready or cannot start: one line for programs, a few for people.

Owns the words and the JSON keys, which scripts and the test fixture rely on; it must never know
how a broker becomes ready, nor print. Invariant: the JSON form is exactly one line, and that of a
ready broker is valid only when clients can connect. Kafka says the same as ``Kafka Server started``
in its log.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from minibroker import __version__

EVENT = "ready"
ERROR_EVENT = "error"
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


class Ready(NamedTuple):
    """A broker that serves: where clients and the control API are, where data lies."""

    bootstrap_servers: str
    """``host:port``, comma-separated: one for each listener."""
    control_url: str
    data_dir: str
    temporary: bool
    """Whether ``data_dir`` is removed at the end."""
    pid: int
    """The supervisor's process, which stops the broker on SIGTERM."""
    client_properties: str = ""
    """The properties file of clients, if the broker was secured by an option."""


class ProxyReady(NamedTuple):
    """A proxy that serves: where clients and the control API are."""

    bootstrap_servers: str
    """``host:port``, comma-separated: one for each upstream address."""
    control_url: str
    pid: int
    client_properties: str = ""
    """The properties file of clients, if they need TLS."""


def as_json(ready: Ready | ProxyReady) -> str:
    """One line of JSON, without its line break."""
    line: dict[str, object] = {
        "event": EVENT,
        "bootstrap_servers": ready.bootstrap_servers,
        "control_url": ready.control_url,
        "pid": ready.pid,
    }
    if ready.client_properties:
        line["client_properties"] = ready.client_properties
    return json.dumps(line)


def error_as_json(message: str, exit_status: int) -> str:
    """One line of JSON for a broker that cannot start: what is wrong, where, and how to fix it."""
    return json.dumps({"event": ERROR_EVENT, "message": message, "exit_status": exit_status})


def proxy_as_text(ready: ProxyReady, upstream: str) -> str:
    """Lines for a person; ``upstream`` is where the proxy connects to."""
    return "\n".join(
        (
            f"minibroker {__version__} is a proxy, process {ready.pid}; Ctrl-C stops it",
            f"  upstream        {upstream}",
            f"  Kafka clients   {ready.bootstrap_servers}",
            *([f"  client config   {ready.client_properties}"] if ready.client_properties else []),
            f"  control         {ready.control_url} (/v1/faults, /openapi.json)",
            "Try it in another terminal:",
            f"  minibroker faults add delay api=Fetch delay_ms=500 --control {ready.control_url}",
        )
    )


def as_text(ready: Ready, command: str = "minibroker") -> str:
    """Lines for a person; ``command`` is how that person calls this program."""
    address = ready.bootstrap_servers.split(",")[0]
    server = "" if address == DEFAULT_BOOTSTRAP else f" -b {address}"
    kept = "removed at the end" if ready.temporary else "kept"
    secured = []
    if ready.client_properties:
        folder = os.path.dirname(ready.client_properties)
        others = f"{command} client-config --for LIBRARY --security-dir {folder}{server}"
        secured = [f"  client config   {ready.client_properties}", f"                  {others}"]
        server = f" -b {address} --command-config {ready.client_properties}"
    return "\n".join(
        (
            f"minibroker {__version__} is ready, process {ready.pid}; Ctrl-C stops it",
            f"  Kafka clients   {ready.bootstrap_servers}",
            f"  control         {ready.control_url} (/console, /metrics, /openapi.json)",
            f"  data            {ready.data_dir} ({kept})",
            *secured,
            "Try it in another terminal:",
            f"  echo hello | {command} produce cats{server}",
            f"  {command} consume cats --from-beginning{server}",
        )
    )


def command_name(argv0: str, found: str | None) -> str:
    """How to call this program again, from the folder it was called in.

    ``argv0`` is how it was called; ``found`` what the shell finds under its name, if anything.
    """
    folder, name = os.path.split(argv0)
    if name == "__main__.py":
        return "python -m minibroker"
    if found is not None:
        return name
    relative = os.path.relpath(argv0)
    if not folder or relative.startswith(os.pardir):
        return argv0
    return relative if os.sep in relative else os.path.join(os.curdir, relative)
