"""Project rules as tests: what a reviewer would otherwise have to check every time.

Owns the limits on length, the pairing of files and tests, and the words that may not stay in the
tree. It reads sources as text and syntax trees and imports none of them. Invariant: an excuse here
can only disappear; one that is no longer needed fails the test until it is deleted. After
TigerBeetle's ``tidy.zig`` and mitmproxy's ``filename_matching.py``.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("minibroker", "protocol/minibroker_protocol")
TESTS = ("tests", "system_tests")
TOP_LEVEL = {"minibroker", "protocol", "tests", "system_tests", "docker", "docs"}

FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 900
OPENING_SENTENCES_MIN = 2

# Assembled, so that this file may contain the words it searches for.
UNFINISHED = re.compile(
    r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK")) + r")\b"
)
MACHINE_PATH = re.compile(r"/(home|Users|root)/\w")

MESSAGES = Path("protocol/minibroker_protocol/messages")
"""Message declarations are compared with their oracles as a whole, not file by file."""

SHELL = "a thin shell: every test with a whole broker runs it, simulated or real"
WITHOUT_OWN_TEST: dict[str, str] = {
    "minibroker/launch/processes.py": SHELL,
}
"""Source file -> why it has no test file of its own. It may only shrink."""

ONLY_FOR_TESTS = {"minibroker/launch/tasks.py"}
"""Used by nothing that is shipped, and by some test."""

SIMULATION = Path("tests/simulation")
"""Everything in here runs on a mock clock."""

PAGE = Path("minibroker/lab/control/console")
"""A page for browsers: files of other languages, with the same limits."""

VERSION = Path("minibroker/_version.py")
"""Written by each build from the tags; Git ignores it."""

CLOCKS_OF_TESTS = ("MockClock", "autojump_clock", "mock_clock", "SharedClock")


def sources(*folders: str) -> list[Path]:
    """Python files under ``folders``, relative to the root, in a stable order."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    paths = (path.relative_to(ROOT) for path in found if "target" not in path.parts)
    return sorted(path for path in paths if path != VERSION)


@functools.cache
def text(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(text(path), filename=str(path))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_functions_fit_on_a_screen() -> None:
    too_long = [
        f"{path}:{node.lineno} {node.name} has {length(node)} lines"
        for path in sources(*PACKAGES, *TESTS)
        for node in functions(path)
        if length(node) > FUNCTION_LINES_MAX
    ]
    assert not too_long, "\n".join([f"split these (limit {FUNCTION_LINES_MAX}):", *too_long])


def page_files() -> list[Path]:
    """The files of the page, relative to the root."""
    return sorted(path.relative_to(ROOT) for path in (ROOT / PAGE).iterdir())


def test_files_are_short() -> None:
    too_long = [
        f"{path} has {lines} lines"
        for path in [*sources(*PACKAGES, *TESTS), *page_files()]
        if (lines := text(path).count("\n")) > FILE_LINES_MAX
    ]
    assert not too_long, "\n".join([f"split these (limit {FILE_LINES_MAX}):", *too_long])


def test_every_module_has_a_docstring() -> None:
    silent = []
    for path in sources(*PACKAGES):
        opening = ast.get_docstring(tree(path)) or ""
        sentences = len(re.findall(r"[.:;](\s|$)", opening))
        wanted = (
            1 if path.name == "__init__.py" or MESSAGES in path.parents else OPENING_SENTENCES_MIN
        )
        if sentences < wanted:
            silent.append(f"{path}: say what it owns, what it must never know, and its invariant")
    assert not silent, "\n".join(silent)


def expected_test(path: Path) -> Path:
    """Where the tests of source file ``path`` live."""
    parts = ("protocol", *path.parts[2:]) if path.parts[0] == "protocol" else path.parts[1:]
    return Path("tests", *parts[:-1], f"test_{path.name}")


def has_test(path: Path) -> bool:
    """Whether there is a test file for ``path``, its own or a contract suite's."""
    contract = Path("tests/contracts", f"test_{path.name}")
    return (ROOT / expected_test(path)).exists() or (ROOT / contract).exists()


def needs_test(path: Path) -> bool:
    return path.name not in ("__init__.py", "__main__.py") and MESSAGES not in path.parents


def test_every_source_file_has_a_test_file() -> None:
    missing = [
        f"{path}: write {expected_test(path)}"
        for path in sources(*PACKAGES)
        if needs_test(path) and str(path) not in WITHOUT_OWN_TEST and not has_test(path)
    ]
    assert not missing, "\n".join(missing)


def test_excuses_only_shrink() -> None:
    stale = [
        f"{name} has a test file of its own now, or is gone: delete its excuse"
        for name in WITHOUT_OWN_TEST
        if has_test(Path(name)) or not (ROOT / name).exists()
    ]
    assert not stale, "\n".join(stale)


def imported_names(path: Path) -> Iterator[str]:
    """Every dotted name that ``path`` imports, or mentions in a string (late imports)."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            yield node.value


def dotted(path: Path) -> str:
    """The name under which ``path`` is imported."""
    parts = path.with_suffix("").parts
    return ".".join(parts[1:] if parts[0] == "protocol" else parts)


def mentioned(page: str) -> set[str]:
    """Modules named on a page that is not Python."""
    return set(re.findall(r"minibroker(?:_protocol)?(?:\.\w+)+", text(Path(page))))


def test_every_file_is_imported() -> None:
    used = {name for path in sources(*PACKAGES) for name in imported_names(path)}
    used |= mentioned("pyproject.toml") | mentioned("Makefile")
    dead = {
        str(path) for path in sources(*PACKAGES) if needs_test(path) and dotted(path) not in used
    }
    assert not dead - ONLY_FOR_TESTS, "nothing imports these: " + ", ".join(dead - ONLY_FOR_TESTS)


def module(path: Path) -> str:
    """Return the name of the module in a file; that of a package is its folder's."""
    return dotted(path).removesuffix(".__init__")


def imports(path: Path) -> Iterator[str]:
    """Yield the imports of a file, wherever the statement is; names of packages and of modules."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else node.module


MODULES = {module(path): path for path in sources(*PACKAGES, *TESTS)}


def test_no_import_cycles() -> None:
    graph = {name: MODULES.keys() & set(imports(path)) - {name} for name, path in MODULES.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("these import each other: " + " -> ".join(error.args[1]))


def test_what_is_only_for_tests_is_used_by_tests() -> None:
    used = {name for path in sources(*TESTS) for name in imported_names(path)}
    assert [name for name in ONLY_FOR_TESTS if dotted(Path(name)) not in used] == []


def sleeps(within: ast.AST) -> Iterator[int]:
    for node in ast.walk(within):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("trio.sleep", "time.sleep"):
            yield node.lineno


def names_clock(source: str) -> bool:
    return any(clock in source for clock in CLOCKS_OF_TESTS)


def test_tests_never_wait_for_real_time_to_pass() -> None:
    files = [path for path in sources("tests") if SIMULATION not in path.parents]
    waiting = [
        f"{path}:{line} sleeps: wait for a condition, or run on trio.testing.MockClock"
        for path in files
        for line in sleeps(tree(path))
        if not names_clock(text(path))
    ]
    # A clock that only a fixture of the test knows is not the one that the test runs on.
    waiting += [
        f"{path}:{line} sleeps, so {test.name} must take the clock itself: autojump_clock"
        for path in files
        for test in functions(path)
        if isinstance(test, ast.AsyncFunctionDef) and test.name.startswith("test_")
        if not names_clock(ast.unparse(test))
        for line in sleeps(test)
    ]
    assert not waiting, "\n".join(waiting)


@pytest.mark.parametrize("pattern", [UNFINISHED, MACHINE_PATH], ids=["unfinished", "machine path"])
def test_no_temporary_file_is_left(pattern: re.Pattern[str]) -> None:
    pages = [path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md")]
    found = [
        f"{path}:{number} {line.strip()}"
        for path in [
            *sources(*PACKAGES, *TESTS),
            *page_files(),
            *pages,
            Path("README.md"),
            Path("Makefile"),
        ]
        for number, line in enumerate(text(path).splitlines(), start=1)
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


def test_top_level_folders_are_the_ones_agreed() -> None:
    others = {
        path.name
        for path in ROOT.iterdir()
        if path.is_dir() and not path.name.startswith(".") and path.name not in ("build", "dist")
    }
    assert others <= TOP_LEVEL, f"not in the layout: {sorted(others - TOP_LEVEL)}"
