"""Installs artefacts of ``make dist`` as a stranger does, and runs a first test with each.

Owns what a release promises: the names that an installation adds, the version, the links of its
page on an index, and that a test with the plugin, a client and the command line passes. It must
never see the checkout: environments and working directories are temporary ones, and the module
path of this process is not passed on. Invariant: every artefact that suits a Python is tried.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.tags import platform_tags
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parent.parent
IMPORT_NAMES = {"minibroker", "minibroker_protocol"}
OWN_FILES = re.compile(r"minibroker-[^/]+\.dist-info/|(\.\./)+bin/minibroker$")
CLIENT = "confluent-kafka"
"""The client of the README's first test."""

COMMANDS_TEST = """

def test_record_of_the_command_line_is_consumed(minibroker, minibroker_topic):
    import subprocess, sys
    from pathlib import Path

    def run(*words, text=None):
        command = [str(Path(sys.executable).with_name("minibroker")), *words]
        command += ["-b", minibroker.bootstrap_servers]
        return subprocess.run(command, input=text, check=True, stdout=-1, text=True).stdout

    run("produce", minibroker_topic, text="hello\\n")
    options = ["--from-beginning", "--max-messages", "1"]
    assert run("consume", minibroker_topic, *options) == "hello\\n"
"""

INSTALLED = """
import importlib.metadata, json, minibroker
distribution = importlib.metadata.distribution("minibroker")
print(json.dumps({
    "files": [str(path) for path in distribution.files],
    "version": [distribution.version, minibroker.__version__],
    "page": distribution.metadata["Description"],
    "path": minibroker.__file__,
}))
"""


class CheckFailed(Exception):
    """An artefact does not keep a promise."""


def strange_files(files: Sequence[str]) -> list[str]:
    """Return the installed files that are none of ours: other import names, sources of others."""
    return [
        path
        for path in files
        if not OWN_FILES.match(path)
        and (path.split("/")[0] not in IMPORT_NAMES or path.startswith("minibroker/languages/"))
    ]


def dead_links(page: str) -> list[str]:
    """Return links of a page that lead nowhere on a package index."""
    targets: list[str] = re.findall(r"\]\(([^)\s]+)\)", page)
    return [target for target in targets if not re.match(r"https?://|#", target)]


def first_test() -> str:
    """Return the README's first test, and one of the command line."""
    page = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (first,) = (block for block in blocks if "def test_" in block and "minibroker_topic" in block)
    return str(first) + COMMANDS_TEST


def suits(artefact: Path, version: str) -> bool:
    """Whether an artefact is for this system and a Python of this version, e.g. ``3.12``."""
    if artefact.suffix != ".whl":
        return True
    platforms = {"any", *platform_tags()}
    interpreters = {"py3", f"cp{version.replace('.', '')}"}
    *_, tags = parse_wheel_filename(artefact.name)
    return any(tag.platform in platforms and tag.interpreter in interpreters for tag in tags)


class Environment:
    """An empty environment outside of the repository."""

    def __init__(self, folder: Path, python: str) -> None:
        self._folder = folder
        self._python = folder / "venv" / "bin" / "python"
        self._variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "MINIBROKER_", "VIRTUAL_ENV"))
        }
        self._uv("venv", "--python", python, str(folder / "venv"))

    def install(self, *packages: str) -> None:
        self._uv("pip", "install", "--python", str(self._python), *packages)

    def python(self, *arguments: str) -> str:
        return self._run([str(self._python), *arguments])

    def _uv(self, *arguments: str) -> None:
        self._run([str(Path(sys.executable).with_name("uv")), "--no-config", "-q", *arguments])

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(  # noqa: S603 - our own command
            command,
            check=False,
            cwd=self._folder,
            env=self._variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise CheckFailed(f"{' '.join(command)} failed:\n{done.stdout}")
        return done.stdout


def check_package(artefact: Path, python: str) -> str:
    """Try one artefact. Returns what it is; raises CheckFailed."""
    with TemporaryDirectory(prefix="release-check-") as name:
        environment = Environment(Path(name), python)
        environment.install(str(artefact), "pytest", CLIENT)
        found = json.loads(environment.python("-c", INSTALLED))
        if strange := strange_files(found["files"]):
            raise CheckFailed(f"it installs {strange}")
        if not found["path"].startswith(name):
            raise CheckFailed(f"minibroker is imported from {found['path']}")
        if len(set(found["version"])) > 1 or f"-{found['version'][0]}" not in artefact.name:
            raise CheckFailed(f"its versions differ: {found['version']}")
        if dead := dead_links(found["page"]):
            raise CheckFailed(f"its page on an index has dead links: {dead}")
        kind = environment.python("-m", "minibroker", "--version").strip()
        is_pure = "-py3-none-" in artefact.name or artefact.suffix == ".gz"
        if kind.endswith("compiled") == is_pure:
            raise CheckFailed(f"it is {kind}")
        Path(name, "test_first.py").write_text(first_test())
        return f"{kind}: {environment.python('-m', 'pytest', '-q').splitlines()[-1]}"


def check_executable(executable: Path) -> str:
    """Produce and consume with nothing but the executable. Returns what it is."""
    with TemporaryDirectory(prefix="release-check-") as home:
        variables = {"HOME": home, "PATH": ""}

        def run(*words: str, text: str | None = None) -> str:
            done = subprocess.run(  # noqa: S603 - our own command
                [str(executable), *words],
                input=text,
                check=False,
                cwd=home,
                env=variables,
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise CheckFailed(f"{words} failed:\n{done.stdout}{done.stderr}")
            return done.stdout

        begin = time.monotonic()
        kind = run("--version").strip()
        unpacked = time.monotonic() - begin
        options = ["--json", "--exit-with-parent", "--listener", "PLAINTEXT://127.0.0.1:0"]
        with subprocess.Popen(  # noqa: S603 - our own command
            [str(executable), "start", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=home,
            env=variables,
        ) as broker:
            assert broker.stdout is not None
            begin = time.monotonic()
            ready = json.loads(broker.stdout.readline() or "{}")
            if ready.get("event") != "ready":
                raise CheckFailed(f"the broker says {ready}")
            started = time.monotonic() - begin
            server = ["-b", ready["bootstrap_servers"]]
            run("produce", "cats", *server, text="hello\n")
            seen = run("consume", "cats", "--from-beginning", "--max-messages", "1", *server)
        if seen != "hello\n":
            raise CheckFailed(f"consumed {seen!r}")
        size = executable.stat().st_size / 1e6
        return f"{kind}: {size:.1f} MB, first run {unpacked:.1f} s, later start {started:.1f} s"


def version_of(python: str) -> str:
    """Return the version of a Python, e.g. ``3.12``."""
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run(  # noqa: S603 - our own command
        [python, "-c", program], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def main() -> None:
    """Try each artefact with each Python that it is for; fail if one fails, or none was tried."""
    parser = argparse.ArgumentParser(description="Try artefacts as a stranger does.")
    parser.add_argument("artefacts", nargs="+", type=Path)
    parser.add_argument("--python", action="append", help="may be repeated; this one by default")
    options = parser.parse_args()
    pythons = {version_of(python): python for python in options.python or [sys.executable]}
    checks, failures = 0, 0
    for artefact in map(Path.resolve, options.artefacts):
        is_package = artefact.suffix in (".whl", ".gz")
        for version, python in pythons.items() if is_package else [("its own Python", "")]:
            if not suits(artefact, version):
                continue
            begin = time.monotonic()
            try:
                result = (
                    check_package(artefact, python) if is_package else check_executable(artefact)
                )
            except CheckFailed as failure:
                failures += 1
                result = f"FAILED: {failure}"
            checks += 1
            took = time.monotonic() - begin
            print(f"{artefact.name} with {version}: {result} ({took:.0f} s)", flush=True)
    print(f"{checks - failures} passed, {failures} failed")
    sys.exit(bool(failures) or not checks)


if __name__ == "__main__":
    main()
