"""kafka-python's integration tests, from its source distribution on PyPI.

Owns the folder in which these tests find what they need. What they are expected to do is in
`expected/kafka_python.txt`. Invariant: the tests are those of the installed version, and their own
fixtures start the brokers: without and with TLS, and with each SASL mechanism. A test that fails
must pass when it is run again, because a consumer of kafka-python gets nothing if it subscribes
between sending a Metadata request and its response; this happened to 3 of 2,700 consumers on a busy
machine.
The command line of pytest must not pick up this project's settings and plugins; a run that takes
too long is ended and raises, with what it printed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from system_tests.harness.archives import source_distribution, unpacked
from system_tests.harness.jars import CACHE, PROJECT, import_path
from system_tests.suites.expectations import Outcome, Result
from system_tests.suites.kafka_scripts import write_script, write_scripts
from system_tests.suites.kafka_service import FORMAT_COMMAND, TEMPLATES
from system_tests.suites.outcomes import from_junit

NAME = "kafka_python"
ARCHIVE = source_distribution(
    "kafka-python", "3.0.12", "4ccda3616b9aa5c353d74a97f2770d6cd1b950890d77ab0e8890e09a48eeed65"
)
KAFKA_VERSION = "4.3"
"""The version whose features the tests may use."""
LIMIT_S = 600
FOLDER = "test/integration"


def run(*, short: bool) -> dict[str, Result]:
    """Run the tests; the short run is the complete one."""
    folder = CACHE / "suite-kafka-python"
    arrange(unpacked(ARCHIVE), folder)
    environment = {
        **os.environ,
        "KAFKA_VERSION": KAFKA_VERSION,
        "KAFKA_ROOT": str(folder),
        "PROJECT_ROOT": str(folder),
    }
    prefix = FOLDER.replace("/", ".") + "."
    return with_second_attempts(
        partial(run_pytest, folder, environment=environment, limit_s=LIMIT_S, prefix=prefix)
    )


def with_second_attempts(
    run_tests: Callable[[Sequence[str]], dict[str, Result]],
) -> dict[str, Result]:
    """Run all tests, and those that fail once more; return how each ended last.

    `run_tests` gets arguments of pytest.
    """
    results = run_tests([FOLDER])
    failed = [test for test, result in results.items() if result.outcome is Outcome.RED]
    if failed:
        results |= run_tests([argument_of(test) for test in failed])
    return results


def argument_of(test: str) -> str:
    """Return the argument of pytest for a test: `module.Class::test` is in `module.py`."""
    place, name = test.split("::", 1)
    module, *classes = place.split(".")
    return "::".join([f"{FOLDER}/{module}.py", *classes, name])


def arrange(archive: Path, folder: Path) -> None:
    """Copy the tests to a folder and add the modules, scripts and templates that they lack."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(archive / "test", folder / "test")
    (folder / "test" / "__init__.py").touch()
    (folder / "test" / "service.py").write_text(
        "from system_tests.suites.kafka_service import ExternalService, SpawnedService\n"
    )
    write_scripts(folder)
    write_script(folder / "bin" / "kafka-storage.sh", FORMAT_COMMAND)
    templates = folder / "servers" / "resources" / "default"
    templates.mkdir(parents=True)
    for name, text in TEMPLATES.items():
        (templates / name).write_text(text)


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
