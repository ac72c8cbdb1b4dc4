"""A reader of a page: a shell in a fresh folder, with the ports of a machine of its own.

Owns the folder, the network namespace, the programs on PATH and the end of everything that a page
starts. It must never know a page. Invariant: commands run unchanged, except for what a reader
replaces; no process of a page outlives it. Each page has a network namespace, so that pages can use
the same ports at a time; nothing outside of the machine is reachable there.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from system_tests.guides.blocks import ROOT, Block
from system_tests.harness.jars import ToolchainMissing, import_path
from system_tests.harness.waiting import wait_until

PROGRAMS: Final = Path(__file__).parent / "programs"
PATIENCE_S: Final = 240
CONTROL: Final = "127.0.0.1:8080"
NEEDED: Final = ("unshare", "ip", "bash", "curl", "jq")
CHECKOUT: Final = (
    ".ci",
    "Makefile",
    "docker",
    "docs",
    "minibroker",
    "protocol",
    "pyproject.toml",
    "system_tests",
)
"""What the reader's folder has of the checkout."""


class Ran(NamedTuple):
    """How a page went: the last block that was started, and all that was printed."""

    code: int
    block: Block | None
    printed: str


class Reader:
    """Runs the blocks of one page; ``folder`` is empty at first."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str], *, in_checkout: bool = False
    ) -> None:
        if missing := [name for name in NEEDED if shutil.which(name) is None]:
            raise ToolchainMissing(f"the pages' commands need {', '.join(missing)}")
        self._folder = folder / "reader"
        self._kept = folder / "kept"
        for path in (self._folder, self._kept, folder / "home"):
            path.mkdir()
        programs = self._folder / ".venv" / "bin"
        programs.mkdir(parents=True)
        for path in PROGRAMS.iterdir():
            (programs / path.name).symlink_to(path)
        (self._folder / "bin").symlink_to(programs)
        if in_checkout:
            self._link_checkout()
        real = Path(sys.executable).parent
        self._environment = {
            **{name: value for name, value in os.environ.items() if "MINIBROKER" not in name},
            "PATH": f"{programs}:{real}:{os.environ['PATH']}",
            "HOME": str(folder / "home"),
            "KEPT": str(self._kept),
            "PROGRAMS": f"{real}:{os.environ['PATH']}",
            "PYTHONPATH": os.environ.get("PYTHONPATH", import_path(ROOT)),
            "control_url": f"http://{CONTROL}",
            **environment,
        }

    def _link_checkout(self) -> None:
        """Let the folder be a checkout in which everything is installed."""
        for name in CHECKOUT:
            (self._folder / name).symlink_to(ROOT / name)
        for name in (".installed", ".installed-dev"):  # Later than what `make` compares them with.
            (self._folder / ".venv" / name).touch()

    def run(self, script: Sequence[tuple[Block | None, str]]) -> Ran:
        """Run commands from top to bottom in one shell, until one fails."""
        place = self._kept / "place"
        namespace = self._kept / "namespace"
        lines = [f"readlink /proc/self/ns/net > {namespace}", "set -euo pipefail"]
        lines += ["ip link set lo up"]
        for number, (_, text) in enumerate(script):
            lines += [f"echo {number} > {place}", text]
        lines += [f"echo {len(script)} > {place}", "ctrl-c"]
        command = ["unshare", "--net", "bash", "-c", "\n".join(lines)]
        if os.geteuid() != 0:
            command.insert(1, "--map-root-user")
        printed = self._kept / "printed"
        with printed.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                code = process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                code = 124
            finally:
                process.kill()
                process.wait()
                _end_all_in(namespace)
        reached = int(place.read_text()) if place.exists() else 0
        block = script[reached][0] if reached < len(script) else None
        alongside = self._kept / "alongside"
        texts = [path.read_text(errors="replace") for path in (printed, alongside) if path.exists()]
        return Ran(code, block, "\n--- alongside:\n".join(texts))


def _end_all_in(stored: Path) -> None:
    """Kill what still runs in the network namespace of a page, and wait for its end."""
    if stored.exists():
        namespace = stored.read_text().strip()
        wait_until(partial(_nothing_runs_in, namespace), "the end of a page's processes")


def _nothing_runs_in(namespace: str) -> bool:
    """Whether no process has this network namespace; those that have are killed."""
    found = False
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and os.readlink(entry / "ns/net") == namespace:
                found = True
                os.kill(int(entry.name), signal.SIGKILL)
    return not found
