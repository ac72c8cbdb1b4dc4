"""Runs pytest on tests that are not ours.

Owns the command line, which must not pick up this project's settings and plugins. It must never
know the tests. Invariant: a run that takes too long is ended and raises, with what it printed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from system_tests.harness.jars import PROJECT, import_path
from system_tests.suites.expectations import Result
from system_tests.suites.outcomes import from_junit

PLUGINS_OFF = ("randomly", "xdist", "minibroker", "trio", "cacheprovider")


class NotFinished(AssertionError):
    """A suite did not report; the text is the end of its output."""


def run_pytest(
    folder: Path,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    limit_s: float,
    prefix: str,
) -> dict[str, Result]:
    """Run tests below `folder` and return how each ended, named without `prefix`."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    (folder / "pytest.ini").write_text("[pytest]\n")
    off = [word for name in PLUGINS_OFF for word in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", "-q", *off, "-c", "pytest.ini", "--rootdir=."]
    with (folder / "output.txt").open("w") as output:
        try:
            subprocess.run(
                [*command, f"--junitxml={report}", *arguments],
                check=False,
                cwd=folder,
                env={**environment, "PYTHONPATH": f"{folder}:{import_path(PROJECT)}"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired as late:
            raise NotFinished(f"not finished in {limit_s} s\n{_end(folder)}") from late
    if not report.exists():
        raise NotFinished(_end(folder))
    return from_junit(report.read_text(), prefix)


def _end(folder: Path) -> str:
    return (folder / "output.txt").read_text()[-4000:]
