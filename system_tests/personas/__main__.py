"""Records the facts of personas from real brokers: ``python -m system_tests.personas [NAME ...]``.

Owns the files in `minibroker/broker/personas/facts`, which it writes. Redpanda is read from its
source, given as ``redpanda=REPOSITORY@TAG``. Invariant: each file names the source of its facts,
and a second run writes the same file.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from minibroker.broker.personas.persona import FACTS
from system_tests.personas.brokers import RELEASES, kafka
from system_tests.personas.questions import QUOTA_SETTINGS, facts
from system_tests.personas.redpanda import read_source


def ask(name: str) -> dict[str, Any]:
    """Start the release of a persona and return its facts."""
    release = RELEASES[name]
    settings = {} if release.has_raft else QUOTA_SETTINGS
    with (
        tempfile.TemporaryDirectory() as folder,
        kafka(release, Path(folder), settings) as broker,
    ):
        return {"source": release.title, **facts(broker)}


def main(names: list[str]) -> None:
    """Write the files of these personas, or of all that can be started."""
    for name in names or RELEASES:
        persona, _, source = name.partition("=")
        found = read_source(*source.split("@")) if source else ask(persona)
        path = FACTS / f"{persona}.json"
        path.write_text(_text(found), encoding="utf-8")
        print(f"{path}: {found['source']}")


def _text(found: dict[str, Any]) -> str:
    """JSON with one line for each API."""
    text = json.dumps(found, indent=2)
    for low, high in [*found["versions"].values(), *_supported(found)]:
        text = text.replace(_pair(low, high, 6), f"[{low}, {high}]")
        text = text.replace(_pair(low, high, 8), f"[{low}, {high}]")
    return text + "\n"


def _supported(found: dict[str, Any]) -> list[list[int]]:
    return list((found["features"] or {"supported": {}})["supported"].values())


def _pair(low: int, high: int, spaces: int) -> str:
    indent = " " * spaces
    return f"[\n{indent}{low},\n{indent}{high}\n{indent[:-2]}]"


if __name__ == "__main__":
    main(sys.argv[1:])
