"""The packages for other languages with what they need, and the minibroker that they find.

Owns the copies in the cache and the environment of a toolchain. It must never know what the tests
of a package check. Invariant: a copy was made from the current sources, and every program that runs
in the environment finds the broker of this checkout.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from system_tests.harness.jars import (
    CACHE,
    PROJECT,
    ToolchainMissing,
    fetch,
    import_path,
    one_at_a_time,
)
from system_tests.harness.waiting import PATIENCE_S

LANGUAGES: Final = PROJECT / "minibroker" / "languages"
HERE: Final = Path(__file__).parent

INSTALL_NODE: Final = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
# One short test has Maven fetch the plug-ins that run all others.
PREPARE_JAVA: Final = [
    *["mvn", "-q", "-B", "test", "-Dtest=JsonTest"],
    "-Dsurefire.failIfNoSpecifiedTests=false",
]


def node_package() -> Path:
    """Return a copy of the package for Node.js whose example has its packages."""
    return _copy("node", INSTALL_NODE, "example")


def java_package() -> Path:
    """Return a copy of the package for Java, compiled."""
    return _copy("java", PREPARE_JAVA, ".")


def _copy(language: str, command: list[str], where: str) -> Path:
    if shutil.which(command[0]) is None:
        raise ToolchainMissing(f"`{command[0]}` is not on the path: install it for {language}")
    sources = LANGUAGES / language
    ignored = shutil.ignore_patterns("node_modules", "target")
    files = sorted(path for path in sources.rglob("*") if path.is_file())
    digest = hashlib.sha256()
    for path in files:
        if not {"node_modules", "target"} & set(path.parts):
            digest.update(str(path.relative_to(sources)).encode() + path.read_bytes())
    copy = CACHE / f"{language}-package-{digest.hexdigest()[:12]}"
    with one_at_a_time(f"{language}-package"):
        if not copy.is_dir():
            fresh = copy.with_suffix(".part")
            shutil.rmtree(fresh, ignore_errors=True)
            shutil.copytree(sources, fresh, ignore=ignored)
            fetch(command, f"the packages of {language} were not fetched", fresh / where)
            fresh.rename(copy)
    return copy


def environment_with(folder: Path, program: str) -> dict[str, str]:
    """Return an environment in which ``minibroker`` or ``python3`` is in PATH, in ``folder``."""
    module = " -m minibroker" if program == "minibroker" else ""
    path = folder / program
    # A launcher that waits for its child process: only standard input connects it to the parent.
    path.write_text(f'#!/bin/sh\n"{sys.executable}"{module} "$@"\n')
    path.chmod(0o755)
    others = [
        entry
        for entry in os.environ["PATH"].split(os.pathsep)
        if not Path(entry, "minibroker").exists()
    ]
    environment = {name: value for name, value in os.environ.items() if name != "MINIBROKER"}
    return environment | {
        "PATH": os.pathsep.join([str(folder), *others]),
        "PYTHONPATH": import_path(PROJECT),
    }


def run_tests(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Run the tests of a package. Raises ``AssertionError`` with their output if they fail."""
    done = subprocess.run(
        command,
        check=False,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=5 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout[-8000:]
