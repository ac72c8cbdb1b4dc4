"""The session of a program's former process: kept in a file, and ended before a new one starts.

Owns the file. It must never use a session except to end it. Invariant: only the owner of the data
directory uses the file in it, so the session belongs to no other process. Kafka has no equivalent:
a killed broker waits until its own node times out.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from minibroker.broker.metadata.store.zookeeper_client import ZooKeeperAccess, make_client

Session: TypeAlias = tuple[int, bytes]
"""A session's number and its password."""


def save_session(file: Path, session: Session) -> None:
    """Write the file; only its owner can read it, because it gives access to the session."""
    number, password = session
    fresh = file.with_suffix(".part")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600)
    fresh.write_text(json.dumps({"session": number, "password": password.hex()}))
    os.replace(fresh, file)


def load_session(file: Path) -> Session | None:
    """Read the session in the file; None if it is missing or unreadable."""
    try:
        kept = json.loads(file.read_text())
        return int(kept["session"]), bytes.fromhex(kept["password"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def close_previous_session(access: ZooKeeperAccess, file: Path) -> None:
    """End the saved session and so its ephemeral nodes; blocks up to ``access.patience_s``.

    Without an answer nothing is lost: opening the new session reports the problem.
    """
    former = load_session(file)
    if former is None:
        return
    client, _ = make_client(access, former)
    with suppress(Exception):
        client.start(timeout=access.patience_s)
        client.stop()
        client.close()
