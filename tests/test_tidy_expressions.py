"""Regular expressions of the product: none that text from outside can make run for ever.

Python's `re` tries every way to match, so an expression decides how long a text may take. Owns two
rules. A pattern that is not written in the source goes to ``minibroker.broker.patterns``, which
matches in linear time. One that is written there has no repetition within a repetition, unless the
inner one ends in one way only. It reads sources and imports none of them.
"""

from __future__ import annotations

import ast
import re
import re._constants as sre  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.test_tidy import PACKAGES, sources, text, tree

FUNCTIONS: Final = frozenset(
    {"compile", "findall", "finditer", "fullmatch", "match", "search", "split", "sub", "subn"}
)
OTHER_ENGINES: Final = frozenset({"fnmatch", "regex", "sre_compile", "sre_parse"})

FROM_OUTSIDE: Final = {
    "minibroker/broker/security/certificates.py": "the operator's own rules, which need Java's "
    "groups; the names that they are compared with have at most NAME_CHARS_MAX characters",
}
"""Source file -> why `re` gets a pattern there that is not written in it. It may only shrink."""

Text = str | bytes


def users_of_expressions() -> list[Path]:
    """The source files that import `re`."""
    return [path for path in sources(*PACKAGES) if "import re\n" in text(path)]


def constants(module: ast.Module) -> dict[str, Text]:
    """The texts that a module assigns to names, in their order."""
    found: dict[str, Text] = {}
    for node in module.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        value = written(node.value, found)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name) and value is not None:
                found[target.id] = value
    return found


def written(node: ast.expr | None, known: Mapping[str, Text]) -> Text | None:
    """The text of an expression that consists of texts in the source; None of any other."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        return node.value
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.FormattedValue):
        return written(node.value, known)
    if isinstance(node, ast.JoinedStr | ast.BinOp):
        nodes = node.values if isinstance(node, ast.JoinedStr) else [node.left, node.right]
        parts = [written(part, known) for part in nodes]
        return None if None in parts else "".join(map(str, parts))
    return None


def calls(module: ast.Module) -> Iterator[ast.Call]:
    """The calls of `re` with a pattern."""
    for node in ast.walk(module):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and (node.func.value.id, node.func.attr) in {("re", name) for name in FUNCTIONS}
        ):
            yield node


def unwritten(module: ast.Module) -> list[int]:
    """The lines of calls with a pattern that is not written in the source."""
    known = constants(module)
    return [
        call.lineno
        for call in calls(module)
        if not call.args or written(call.args[0], known) is None
    ]


def other_engines(module: ast.Module) -> set[str]:
    """Imported modules that match with `re`, and names imported from `re`, which hide its calls."""
    found = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names} & OTHER_ENGINES
            found |= {
                f"re as {each.asname}" for each in node.names if each.name == "re" and each.asname
            }
        elif isinstance(node, ast.ImportFrom) and node.module in {"re", *OTHER_ENGINES}:
            found.add(str(node.module))
    return found


def is_ambiguous(pattern: Text) -> bool:
    """Whether a repetition contains another one that can give characters back to it."""
    return any(
        any(_repeats(body)) and not _has_own_start(body) for body in _repeats(parser.parse(pattern))
    )


def _repeats(parsed: Any) -> Iterator[Any]:
    """Yield the body of each repetition without end that gives back."""
    for kind, value in parsed:
        if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT) and value[1] == sre.MAXREPEAT:
            yield value[2]
        for inner in _inside(value):
            yield from _repeats(inner)


def _inside(value: Any) -> Iterator[Any]:
    """Yield the parts of an element that are patterns themselves."""
    if isinstance(value, parser.SubPattern):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _inside(each)


def _has_own_start(body: Any) -> bool:
    """Whether each round starts with a character that its own repetitions cannot contain."""
    elements: list[Any] = list(body)
    while elements[0][0] is sre.SUBPATTERN:
        elements[:1] = elements[0][1][3]
    first, *rest = elements
    if first[0] not in (sre.LITERAL, sre.IN, sre.NOT_LITERAL):
        return False
    starts = _characters([first])
    return all(starts.isdisjoint(_characters(inner)) for inner in _repeats(rest))


def _characters(parsed: Any) -> set[int]:
    """The characters below 256 that a pattern of single characters may contain."""
    found: set[int] = set()
    for kind, value in parsed:
        if kind is sre.SUBPATTERN:
            found |= _characters(value[3])
            continue
        source = parser.SubPattern(parser.State(), [(kind, value)])
        try:
            compiled = re._compiler.compile(source)  # type: ignore[attr-defined]
        except (re.error, AttributeError, TypeError):
            return set(range(256))
        found |= {code for code in range(256) if compiled.fullmatch(chr(code))}
    return found


def test_pattern_from_outside_is_matched_in_linear_time() -> None:
    lines = {
        str(path): numbers for path in users_of_expressions() if (numbers := unwritten(tree(path)))
    }
    found = [
        f"{path}:{number}: use minibroker.broker.patterns for a pattern that is not written here"
        for path, numbers in lines.items()
        for number in numbers
        if path not in FROM_OUTSIDE
    ]
    assert not found, "\n".join(found)
    assert not FROM_OUTSIDE.keys() - lines.keys(), "delete these excuses"


def test_no_other_module_matches_patterns() -> None:
    found = [
        f"{path}: {', '.join(names)}"
        for path in sources(*PACKAGES)
        if (names := other_engines(tree(path)))
    ]
    assert not found, "\n".join(["use `re.name` or minibroker.broker.patterns:", *found])


def test_no_expression_can_match_in_exponentially_many_ways() -> None:
    found = []
    for path in users_of_expressions():
        known = constants(tree(path))
        for call in calls(tree(path)):
            pattern = written(call.args[0], known) if call.args else None
            if pattern is not None and is_ambiguous(pattern):
                found.append(f"{path}:{call.lineno} {pattern!r}")
    assert not found, "\n".join(["make the inner repetitions possessive (`++`, `*+`):", *found])


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("import re\nre.compile(text)", [2]),
        ("import re\nre.compile('a')", []),
        ("import re\nA = 'a'\nre.search(f'{A}+', text)", []),
        ("import re\nre.search(f'{a}+', text)", [2]),
        ("import re\ndef f(p):\n    return [re.fullmatch(p, t) for t in p]", [3]),
        ("import re\nre.sub(pattern=p)", [2]),
    ],
)
def test_unwritten_patterns_are_found(source: str, lines: list[int]) -> None:
    assert unwritten(ast.parse(source)) == lines


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("(a+)+b", True),
        ("(?:a*)*", True),
        ("(a|b+)*c", True),
        ("(?:(?:0x)?[0-9a-f]+[ :]*)+", True),
        ("(?:(?:0x)?+[0-9a-f][ :]*+)++", False),
        ("(?:,[a-z]+)*", False),
        ("[a-z]+-[0-9]*", False),
        ("(?:,[a-z,]+)*", True),
    ],
)
def test_ambiguous_repetitions_are_found(pattern: str, expected: bool) -> None:
    assert is_ambiguous(pattern) is expected
