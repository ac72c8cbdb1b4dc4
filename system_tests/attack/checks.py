"""What a broker may not do under attack, as functions over what was seen.

Owns the verdicts on logs, memory, process restarts and files; it knows neither processes nor files
themselves. The invariant: each function returns what is wrong in words, and nothing if all is well.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

GROWTH_MAX_BYTES: Final = 320 * 1024 * 1024
"""What all processes together may take beyond their size at rest and the memory for requests: two
workers that each decompress the largest batch twice, and caches that fill once."""

LEVELS: Final = ("WARNING", "ERROR")
SHOWN_MAX_CHARACTERS: Final = 1500

_CRASHES: Final = re.compile(
    r"Traceback \(most recent call last\)|Fatal Python error|Exception ignored in|Segmentation"
)
_LINE: Final = re.compile(r"^\S+Z (?P<process>\S+) (?P<level>[A-Z]+) (?P<message>.*)$")
_FIELD: Final = re.compile(r" \w+=")
_SPECIFIC: Final = re.compile(r"'[^']*'|\"[^\"]*\"|/\S+|\d+")
"""What differs between messages of the same kind: names, paths and numbers."""


def crashes(printed: str) -> list[str]:
    """The beginning of each traceback in a log, with what follows it."""
    return [
        printed[found.start() : found.start() + SHOWN_MAX_CHARACTERS]
        for found in _CRASHES.finditer(printed)
    ]


def messages(printed: str) -> Counter[str]:
    """How many warnings and errors a log has, by level and kind of message."""
    found: Counter[str] = Counter()
    for line in printed.splitlines():
        parsed = _LINE.match(line)
        if parsed and parsed["level"] in LEVELS:
            message = _FIELD.split(parsed["message"], maxsplit=1)[0]
            found[f"{parsed['level']} {_SPECIFIC.sub('…', message)}"] += 1
    return found


def unexpected_exceptions(printed: str) -> list[str]:
    """Lines about an exception that no code expected: they name the line that raised it."""
    return [
        line
        for line in printed.splitlines()
        if " ERROR " in line and " error=" in line and " at=" in line
    ]


def growth(at_rest: int, peak: int, request_memory: int) -> list[str]:
    """Whether memory grew by more than it may."""
    grown, bound = peak - at_rest, GROWTH_MAX_BYTES + request_memory
    if grown <= bound:
        return []
    return [f"all processes together grew by {mib(grown)}, which is more than {mib(bound)}"]


def mib(count: int) -> str:
    """A number of bytes in words."""
    return f"{count / 1024 / 1024:.0f} MiB"


def restarts(before: Mapping[str, int], after: Mapping[str, int], kills: Counter[str]) -> list[str]:
    """The processes that were restarted more often than they were killed."""
    return [
        f"{name} was restarted {after[name] - before.get(name, 0)} times and killed {kills[name]}"
        for name in sorted(after)
        if after[name] - before.get(name, 0) > kills[name]
    ]


def changed_files(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Files of others that changed, vanished or appeared, by their fingerprints."""
    found = []
    for name in sorted({*before, *after}):
        if name not in before:
            found.append(f"{name}: appeared")
        elif name not in after:
            found.append(f"{name}: vanished")
        elif before[name] != after[name]:
            found.append(f"{name}: changed")
    return found
