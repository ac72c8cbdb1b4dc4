"""The session of a program's former life: kept in a file, and ended before the next one begins.

Owns the file; it must never use a session for anything but to end it.  The invariant: whoever has
the data directory is the only one to use the file in it, so the session in it is nobody else's.
Kafka has no such thing: a broker that was killed waits for its own node to time out.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from minibroker.cluster.store.zookeeper_client import Access, make_client

Session: TypeAlias = tuple[int, bytes]
"""A session's number and its password."""


def keep_session(file: Path, session: Session) -> None:
    """Write the file anew; it is its owner's alone, as the session would be anybody's else."""
    number, password = session
    fresh = file.with_suffix(".part")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600)
    fresh.write_text(json.dumps({"session": number, "password": password.hex()}))
    os.replace(fresh, file)


def kept_session(file: Path) -> Session | None:
    """The session in the file; None if there is none, or nothing that can be read."""
    try:
        kept = json.loads(file.read_text())
        return int(kept["session"]), bytes.fromhex(kept["password"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def end_former_session(access: Access, file: Path) -> None:
    """End the kept session, so that its ephemeral nodes go; blocks up to ``access.patience_s``.

    Without an answer nothing is lost: whoever opens the new session says what is wrong.
    """
    former = kept_session(file)
    if former is None:
        return
    client, _ = make_client(access, former)
    with suppress(Exception):
        client.start(timeout=access.patience_s)
        client.stop()
        client.close()
