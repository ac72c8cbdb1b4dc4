"""Versions of clients from the public registries, and programs that use them.

Owns the installation of one version of one package into the cache, by the registry's own client,
and the command that runs a program with it. It must never know what a program does. Invariant: two
versions of a client share nothing, so a run has exactly the version that its page names.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from system_tests.harness.jars import CACHE, ToolchainMissing, classpath, fetch, one_at_a_time, run
from system_tests.harness.jvm import short_jvm

_OLD_NODE: Final = """// Node.js before 22 lacks this, and @platformatic/kafka uses it.
Promise.withResolvers ??= () => {
  const parts = {}
  parts.promise = new Promise((resolve, reject) => Object.assign(parts, { resolve, reject }))
  return parts
}
"""
_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>exhibit</groupId><artifactId>exhibit</artifactId>
<version>1</version><dependencies><dependency><groupId>{0}</groupId><artifactId>{1}</artifactId>
<version>{2}</version></dependency><dependency><groupId>org.slf4j</groupId>
<artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency></dependencies></project>
"""


class Runnable(NamedTuple):
    """A program with its client: a command, its folder and what its environment needs."""

    command: list[str]
    folder: Path
    environment: Mapping[str, str]


def runnable(package: str, version: str, program: str, folder: Path) -> Runnable:
    """Install a version of a package, and return how to run a program with it.

    ``folder`` is for the program. Raises `ToolchainMissing`.
    """
    registry, name = package.split(":", 1)
    tool, install, prepare = _REGISTRIES[registry]
    if shutil.which(tool) is None:
        raise ToolchainMissing(f"`{tool}` is not on the path: install it to have {name}")
    digest = hashlib.sha256(f"{package} {version}".encode()).hexdigest()[:12]
    installed = CACHE / f"exhibit-{digest}"
    with one_at_a_time("exhibits"):
        if not installed.is_dir():
            fresh = installed.with_suffix(".part")
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir(parents=True)
            install(name, version, fresh)
            fresh.rename(installed)
        return prepare(installed, program, folder)


def _install_npm(name: str, version: str, folder: Path) -> None:
    words = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", f"{name}@{version}"]
    (folder / "package.json").write_text('{"private": true}')
    fetch(words, f"{name} {version} was not installed", folder)


def _prepare_node(installed: Path, program: str, folder: Path) -> Runnable:
    # Packages are looked up in the folder of the program and above it.
    (folder / "node_modules").symlink_to(installed / "node_modules")
    (folder / "program.mjs").write_text(program)
    (folder / "old-node.cjs").write_text(_OLD_NODE)
    return Runnable(["node", "--require=./old-node.cjs", "program.mjs"], folder, {})


def _install_pip(name: str, version: str, folder: Path) -> None:
    words = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    words += ["--only-binary=:all:", "--target", str(folder), f"{name}=={version}"]
    fetch(words, f"{name} {version} was not installed")


def _prepare_python(installed: Path, program: str, folder: Path) -> Runnable:
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-u", "program.py"]
    return Runnable(command, folder, {"PYTHONPATH": str(installed)})


def _install_go(name: str, version: str, folder: Path) -> None:
    run(["go", "mod", "init", "exhibit"], f"{name}: no Go module was made", folder)
    fetch(["go", "get", f"{name}@v{version}"], f"{name} {version} was not fetched", folder)


def _prepare_go(installed: Path, program: str, folder: Path) -> Runnable:
    built = installed / f"program-{hashlib.sha256(program.encode()).hexdigest()[:12]}"
    if not built.exists():
        for name in ("go.mod", "go.sum"):
            shutil.copy(installed / name, folder)
        (folder / "program.go").write_text(program)
        # The module's own requirements were fetched, those of its packages are added.
        fetch(["go", "mod", "tidy"], "the modules of a program were not fetched", folder)
        run(["go", "build", "-o", str(built), "."], "a program was not built", folder)
    return Runnable([str(built)], folder, {})


def _install_maven(name: str, version: str, folder: Path) -> None:
    group, _, artifact = name.partition(":")
    (folder / "pom.xml").write_text(_POM.format(group, artifact, version))
    words = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"]
    fetch([*words, "-DincludeScope=runtime"], f"{name} {version} was not fetched", folder)


def _prepare_java(installed: Path, program: str, folder: Path) -> Runnable:
    (folder / "Program.java").write_text(program)
    command = [*short_jvm(), "-cp", classpath(installed / "jars"), "Program.java"]
    return Runnable(command, folder, {})


_Install = Callable[[str, str, Path], None]
_Prepare = Callable[[Path, str, Path], Runnable]
_REGISTRIES: Final[Mapping[str, tuple[str, _Install, _Prepare]]] = {
    "npm": ("npm", _install_npm, _prepare_node),
    "pypi": (os.fspath(sys.executable), _install_pip, _prepare_python),
    "go": ("go", _install_go, _prepare_go),
    "maven": ("mvn", _install_maven, _prepare_java),
}
"""The client of each registry, and how it installs a version and runs a program."""
