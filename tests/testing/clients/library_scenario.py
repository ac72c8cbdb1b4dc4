"""What each client library is to do with a running broker: one scenario for all."""

from __future__ import annotations

import uuid
from typing import Any

from minibroker.testing import MiniBroker
from minibroker.testing.clients.session import (
    ClientLibrary,
    ClientOptions,
    ClientSession,
)

POLLS_MAX = 200


def invocation(operation: str, **fields: Any) -> dict[str, Any]:
    return {"process": 0, "type": "invoke", "operation": operation, **fields}


def poll_until(session: ClientSession, key: str, number: int) -> list[list[int]]:
    """Poll until a number of records of a key have arrived."""
    found: list[list[int]] = []
    for _ in range(POLLS_MAX):
        done = session.perform(invocation("poll", steps=[{"poll": {}}]))
        assert done["type"] == "ok", done
        found += done["steps"][0]["poll"].get(key, [])
        if len(found) >= number:
            return found
    raise AssertionError(f"{found} is all that was polled")


def check_library(library: type[ClientLibrary], broker: MiniBroker, topic: str) -> None:
    """Send in transactions, abort one, and read the others with an assigned consumer."""
    key = f"{topic}-0"
    options = ClientOptions(broker.bootstrap_servers, 0, f"{topic}-{uuid.uuid4().hex}")
    session = ClientSession(library(options))
    for number, fields in enumerate(({}, {"abort": True}, {})):
        steps = [{"send": key, "value": number}]
        done = session.perform(invocation("txn", steps=steps, **fields))
        assert done["type"] == ("fail" if fields else "ok"), done
        assert done["steps"][0]["offset"] == 2 * number
    assert session.perform(invocation("assign", keys=[key]))["type"] == "ok"
    assert poll_until(session, key, 2) == [[0, 0], [4, 2]]
    again = invocation("assign", keys=[key], from_beginning=True)
    assert session.perform(again)["type"] == "ok"
    assert poll_until(session, key, 2) == [[0, 0], [4, 2]]
    session.close()


def check_group(library: type[ClientLibrary], broker: MiniBroker, topic: str) -> None:
    """Send without transactions, and read as the member of a group."""
    key = f"{topic}-0"
    options = ClientOptions(broker.bootstrap_servers, 0, None, f"{topic}-{uuid.uuid4().hex}")
    session = ClientSession(library(options))
    done = session.perform(invocation("send", steps=[{"send": key, "value": 5}]))
    assert done["type"] == "ok", done
    assert session.perform(invocation("subscribe", keys=[key]))["type"] == "ok"
    assert poll_until(session, key, 1) == [[0, 5]]
    assert session.perform(invocation("reopen"))["type"] == "ok"
    session.close()
