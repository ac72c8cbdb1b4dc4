"""Names and words as tests: class names are unique, and prose keeps to the words of the field.

Owns a list of words that a Kafka engineer does not expect in docstrings, comments and pages, and
how often they may occur in each folder. It reads sources as text and syntax trees and imports none
of them. Invariant: a rate can only fall; the allowed rates are lowered when the prose gets better.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent

UNEXPECTED: Final = re.compile(
    r"\b("
    r"who|whom|whoever|whomever|whosoever|somebody|nobody|anybody|everybody|someone's|"
    r"told|telling|tells|lately|newcomers?|reborn|turned away|turns? away|hangs? up|hung up|"
    r"let in|lets in|at the door|the door|books|holds? up|held up|gone|stands? for|lies|lie where|"
    r"for ever|ever since|never mind|of its own accord|in its turn|in their turn|happenings?|"
    r"beside|whatever|however they|wherever|whichever|"
    r"begins?|began|begun|asked|mends?|mended|lets go|goes on|went on|comes? in"
    r")\b",
    re.IGNORECASE,
)
"""Words of a storyteller, for which the field has other ones: client, connection, rejected,
reported, restarted, starts, requests, delayed."""

PER_10_000_MAX: Final = {
    "minibroker": 8,
    "protocol": 5,
    "tests": 16,
    "system_tests": 16,
    "docs": 3,
}
"""Allowed occurrences in 10,000 words of docstrings, comments and pages."""

WORD: Final = re.compile(r"[A-Za-z][A-Za-z'-]+")


def python_files(folder: str) -> Iterator[Path]:
    """Python files of a folder in a stable order, without this list of words."""
    own = Path(__file__).resolve()
    yield from sorted(path for path in (ROOT / folder).rglob("*.py") if path.resolve() != own)


def prose_of(path: Path) -> str:
    """Docstrings and comments of a Python file, or a page without code blocks and code spans."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return re.sub(r"```.*?```|`[^`]*`", " ", source, flags=re.DOTALL)
    strings = [
        node.value.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    comments = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    return re.sub(r"``[^`]*``|`[^`]*`", " ", "\n".join([*strings, *comments]))


def pages(folder: str) -> list[Path]:
    """Pages that people write: references are generated from the sources."""
    found = (ROOT / folder).rglob("*.md")
    return sorted(path for path in found if "reference" not in path.parts)


@pytest.mark.parametrize("folder", PER_10_000_MAX)
def test_unexpected_words_do_not_become_more_frequent(folder: str) -> None:
    words, where = 0, Counter[str]()
    for path in [*python_files(folder), *pages(folder)]:
        prose = prose_of(path)
        words += len(WORD.findall(prose))
        where[str(path.relative_to(ROOT))] += len(UNEXPECTED.findall(prose))
    rate = 10_000 * where.total() / max(words, 1)
    worst = "\n".join(f"  {count:3} in {path}" for path, count in where.most_common(10) if count)
    assert rate <= PER_10_000_MAX[folder], (
        f"{folder} has {rate:.1f} unexpected words in 10,000, more than "
        f"{PER_10_000_MAX[folder]}; write the sentences in Kafka's terms:\n{worst}"
    )


def test_class_names_are_unique() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for folder in ("minibroker", "protocol"):
        for path in python_files(folder):
            if path.parent.name == "messages":
                continue  # Named after Kafka's schemas, which repeat names of structs.
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(str(path.relative_to(ROOT)))
    shared = {name: found for name, found in places.items() if len(found) > 1}
    assert not shared, "give these classes more specific names:\n" + "\n".join(
        f"  {name}: {', '.join(found)}" for name, found in sorted(shared.items())
    )
