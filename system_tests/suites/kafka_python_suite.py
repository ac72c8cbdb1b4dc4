"""kafka-python's integration tests, from its source distribution on PyPI.

Owns the folder in which these tests find what they need. What they are expected to do is in
`expected/kafka_python.txt`. Invariant: the tests are those of the installed version, and their own
fixtures start the brokers: without and with TLS, and with each SASL mechanism.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from system_tests.harness.archives import source_distribution, unpacked
from system_tests.harness.jars import CACHE
from system_tests.suites.expectations import Result
from system_tests.suites.kafka_scripts import write_script, write_scripts
from system_tests.suites.kafka_service import FORMAT_COMMAND, TEMPLATES
from system_tests.suites.running import run_pytest

NAME = "kafka_python"
ARCHIVE = source_distribution(
    "kafka-python", "3.0.12", "4ccda3616b9aa5c353d74a97f2770d6cd1b950890d77ab0e8890e09a48eeed65"
)
KAFKA_VERSION = "4.3"
"""The version whose features the tests may use."""
LIMIT_S = 600


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
    return run_pytest(folder, ["test/integration"], environment, LIMIT_S, "test.integration.")


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
