"""Draw the pictures of docs/learn: states from their tables, requests from a journal.

A picture is a Mermaid block after a comment ``<!-- picture: NAME -->``. Without arguments, all are
written; with ``--check``, the exit code is 1 if one is not current.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from minibroker.broker.groups.states import TRANSITIONS
from minibroker.broker.transactions.state_machine import PREDECESSORS, STATE_NAMES, TransactionState
from minibroker.testing import MiniBroker

PAGES: Final = Path(__file__).parents[1] / "docs" / "learn"
MARKER: Final = re.compile(r"<!-- picture: ([a-z-]+) -->\n(?:```mermaid\n.*?\n```\n)?", re.DOTALL)


def states(arrows: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Draw states and the arrows between them: from, to, cause."""
    yield "stateDiagram-v2"
    for before, after, cause in arrows:
        yield f"    {before} --> {after}" + (f": {cause}" if cause else "")


def group_states() -> Iterator[str]:
    """The states of a classic group."""
    return states(
        (before.value, after.value, cause.value)
        for before, causes in TRANSITIONS.items()
        for cause, after in causes.items()
        if after.value != "Dead"
    )


def transaction_states() -> Iterator[str]:
    """The states of a transactional id. Those without a transaction count as one here."""
    idle = TransactionState.EMPTY
    return states(
        (STATE_NAMES[before], STATE_NAMES[after], "")
        for after, befores in PREDECESSORS.items()
        for before in sorted(befores, key=lambda state: state.value)
        if before is not after and after is not idle
    )


def requests() -> Iterator[str]:
    """The requests of a producer and a consumer, as the journal has them."""
    with MiniBroker() as broker:
        commands = (
            ["produce", "cats", "hello"],
            ["consume", "cats", "--from-beginning", "--max-messages", "1"],
        )
        broker.create_topic("cats")
        with broker.journal as journal:
            for command in commands:
                words = [
                    sys.executable,
                    "-m",
                    "minibroker",
                    *command,
                    "-b",
                    broker.bootstrap_servers,
                ]
                subprocess.run(words, check=True, capture_output=True)  # noqa: S603
            entries = journal.entries()
    yield "sequenceDiagram"
    names = iter(["producer", "consumer"])
    clients: dict[str, str] = {}
    for entry in entries:
        if entry["kind"] == "request":
            client = clients.get(entry["connection"]) or next(names)
            clients[entry["connection"]] = client
            yield f"    {client}->>broker: {entry['api']}"
        elif entry["kind"] == "response":
            yield f"    broker-->>{clients[entry['connection']]}: {entry['api']} response"


PICTURES: Final[dict[str, Callable[[], Iterator[str]]]] = {
    "group-states": group_states,
    "transaction-states": transaction_states,
    "requests": requests,
}


def drawn(page: str) -> str:
    """Return a page with its pictures drawn."""

    def picture(found: re.Match[str]) -> str:
        lines = "\n".join(PICTURES[found[1]]())
        return f"<!-- picture: {found[1]} -->\n```mermaid\n{lines}\n```\n"

    return MARKER.sub(picture, page)


def main() -> int:
    """Write or check the pages."""
    behind = 0
    for path in sorted(PAGES.glob("*.md")):
        page = path.read_text(encoding="utf-8")
        current = drawn(page)
        if page != current and "--check" in sys.argv[1:]:
            print(f"{path}: a picture is behind its source: run make docs", file=sys.stderr)
            behind = 1
        elif page != current:
            path.write_text(current, encoding="utf-8")
    return behind


if __name__ == "__main__":
    sys.exit(main())
