"""A page of ``docs/exhibits``: its head, its commands, its program and what it expects.

Owns the format of the pages and of the table in their index, and how expected lines are compared
with what a run printed. It must never run anything. Invariant: everything that a run does and
expects is on the page, so a new exhibit is one file and its row.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

EXHIBITS: Final = Path(__file__).parents[2] / "docs/exhibits"
INDEX: Final = EXHIBITS / "README.md"
ANY_TEXT: Final = "…"
"""In an expected line, whatever a run has there."""

KINDS: Final = ("output", "journal", "judge", "check")
"""Languages of code blocks with what a version is expected to show."""

LANGUAGES: Final = ("js", "python", "go", "java")
"""Languages of programs."""

_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SECTION: Final = re.compile(r"^## With (\S+)$", re.MULTILINE)
_HEAD: Final = frozenset(
    ("client", "package", "defective", "fixed", "issue", "fault", "lost", "verdict", "ci")
)
_TABLE: Final = re.compile(r"^\| Exhibit \|.*?\n(?=\n|\Z)", re.MULTILINE | re.DOTALL)


class InvalidPage(ValueError):
    """A page lacks something, or has it twice."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """Lines that a run must show, in this order."""

    kind: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A bug of a client, as its page describes it."""

    name: str
    title: str
    client: str
    package: str
    """Registry and name, e.g. ``npm:kafkajs``."""
    defective: str
    fixed: str | None
    issue: str
    fault: str
    lost: str
    verdict: tuple[str, ...]
    """What finds the bug: ``judge: RULE``, ``check: ANOMALY``, ``program: ENDING`` or ``journal``.

    Empty, if it was not reproduced.
    """
    ci: bool
    """Whether CI runs it: it takes seconds, and what it shows does not depend on a fast machine."""
    commands: tuple[str, ...]
    language: str
    program: str
    expected: dict[str, tuple[Expectation, ...]]

    @property
    def versions(self) -> tuple[str, ...]:
        """The defective version, and the fixed one if there is one."""
        return (self.defective,) if self.fixed is None else (self.defective, self.fixed)


def exhibits() -> list[Exhibit]:
    """Return the exhibits of all pages, by name."""
    return [parsed(page.stem, page.read_text()) for page in sorted(EXHIBITS.glob("[a-z]*.md"))]


def parsed(name: str, text: str) -> Exhibit:
    """Return the exhibit of a page. Raises `InvalidPage`."""
    head = tomllib.loads(_only(text, "toml"))
    if (missing := _HEAD - head.keys()) or (unknown := head.keys() - _HEAD):
        raise InvalidPage(f"{name}: the head lacks {missing}" if missing else f"{name}: {unknown}")
    languages = [language for language, _ in _BLOCK.findall(text) if language in LANGUAGES]
    if len(languages) != 1:
        raise InvalidPage(f"{name}: one program is needed, in one of {LANGUAGES}")
    exhibit = Exhibit(
        name=name,
        title=text.partition("\n")[0].removeprefix("# "),
        **{key: head[key] for key in _HEAD - {"fixed", "verdict"}},
        fixed=head["fixed"] or None,
        verdict=tuple(head["verdict"]),
        commands=tuple(_only(text, "sh").replace("\\\n", "").splitlines()),
        language=languages[0],
        program=_only(text, languages[0]),
        expected=dict(_sections(text)),
    )
    if set(exhibit.versions) != exhibit.expected.keys():
        raise InvalidPage(f"{name}: sections are needed of {exhibit.versions}")
    return exhibit


def _only(text: str, language: str) -> str:
    blocks = [block for found, block in _BLOCK.findall(text) if found == language]
    if len(blocks) != 1:
        raise InvalidPage(f"one block of {language} is needed, and there are {len(blocks)}")
    return str(blocks[0])


def _sections(text: str) -> Iterator[tuple[str, tuple[Expectation, ...]]]:
    _, *parts = _SECTION.split(text)
    for version, section in zip(parts[::2], parts[1::2], strict=True):
        own = section.partition("\n## ")[0]
        yield (
            version,
            tuple(
                Expectation(kind, tuple(block.splitlines()))
                for kind, block in _BLOCK.findall(own)
                if kind in KINDS
            ),
        )


def missing_line(expectation: Expectation, lines: Sequence[str]) -> str | None:
    """Return the first expected line that a run did not show at its place, or None.

    A line of a journal expects an entry with these words; after ``no`` it expects none from here
    on, and after ``N x`` at least N.
    """
    if expectation.kind == "journal":
        return _missing_entry(expectation.lines, [frozenset(line.split()) for line in lines])
    position = 0
    for line in expectation.lines:
        pattern = re.compile(".*".join(map(re.escape, line.strip().split(ANY_TEXT))))
        found = (at for at, each in enumerate(lines) if pattern.fullmatch(each.strip()))
        at = next((at for at in found if at >= position), None)
        if at is None:
            return line
        position = at + 1
    return None


def _missing_entry(expected: Sequence[str], entries: Sequence[frozenset[str]]) -> str | None:
    position = 0
    for line in expected:
        words = line.split()
        absent = words[0] == "no"
        least = int(words[0]) if words[1] == "x" else 1
        wanted = frozenset(words[1:] if absent else words[2:] if words[1] == "x" else words)
        places = [at for at, entry in enumerate(entries) if at >= position and wanted <= entry]
        if absent:
            if places:
                return line
        elif len(places) < least:
            return line
        else:
            position = places[0] + 1
    return None


def table(shown: Sequence[Exhibit]) -> str:
    """Return the table of the index."""
    rows = [
        "| Exhibit | Client | Defective | Fixed | Fault | What was lost | Found by |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in shown:
        issue = f"[{each.client}]({each.issue})"
        verdict = ", ".join(f"`{found}`" for found in each.verdict) or "not reproduced"
        cells = (f"[{each.title}]({each.name}.md)", issue, each.defective, each.fixed or "none yet")
        rows.append("| " + " | ".join((*cells, each.fault, each.lost, verdict)) + " |")
    return "\n".join(rows) + "\n"


def with_table(index: str, shown: Sequence[Exhibit]) -> str:
    """Return the text of the index with the table of these exhibits."""
    replaced, count = _TABLE.subn(lambda _: table(shown), index)
    if count != 1:
        raise InvalidPage("the index has no table that starts with `| Exhibit |`")
    return replaced
