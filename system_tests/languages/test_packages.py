"""The tests and the examples of the packages for other languages pass with this broker."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from system_tests.conftest import without_toolchain
from system_tests.harness.compiling import built_with_go, fetch_go_modules
from system_tests.harness.jars import PROJECT, ToolchainMissing
from system_tests.harness.processes import is_running, tree
from system_tests.harness.waiting import wait_until
from system_tests.languages.toolchains import (
    HERE,
    LANGUAGES,
    environment_with,
    java_package,
    node_package,
    run_tests,
)

pytestmark = pytest.mark.minibroker

GO_TEST = ["go", "test", "-count=1", "-vet=all", "."]


def example_of_the_guide(language: str) -> str:
    """Return the test in a language that the guide shows."""
    guide = (PROJECT / "docs/guides/other-languages.md").read_text()
    (example,) = re.findall(rf"^```{language}\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    return str(example)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return environment_with(tmp_path, "minibroker")


@pytest.mark.node
def test_node_package_and_example_pass(environment: dict[str, str]) -> None:
    try:
        package = node_package()
    except ToolchainMissing as missing:
        without_toolchain(missing)
        raise
    (package / "example" / "guide.test.js").write_text(example_of_the_guide("js"))
    run_tests(["npm", "test"], package, environment)
    run_tests(["npm", "test"], package / "example", environment)


@pytest.mark.java
def test_java_package_and_example_pass(environment: dict[str, str]) -> None:
    try:
        package = java_package()
    except ToolchainMissing as missing:
        without_toolchain(missing)
        raise
    guide = package / "example/src/test/java/orders/GuideTest.java"
    guide.write_text(example_of_the_guide("java"))
    run_tests(["mvn", "-q", "-B", "test"], package, environment)


def test_go_package_and_example_pass(environment: dict[str, str], tmp_path: Path) -> None:
    package = tmp_path / "go"
    shutil.copytree(LANGUAGES / "go", package)
    (package / "example" / "guide_test.go").write_text(example_of_the_guide("go"))
    try:
        fetch_go_modules(package / "example")
    except ToolchainMissing as missing:
        without_toolchain(missing)
        raise
    run_tests(GO_TEST, package, environment)
    run_tests(GO_TEST, package / "example", environment)


def node_holder() -> list[str]:
    return ["node", str(HERE / "holder.js"), str(node_package())]


def java_holder() -> list[str]:
    classes = java_package() / "minibroker" / "target" / "classes"
    return ["java", "-cp", str(classes), str(HERE / "Holder.java")]


def go_holder() -> list[str]:
    return [str(built_with_go(HERE / "broker_holder"))]


@pytest.mark.parametrize("found_as", ["minibroker", "python3"])
@pytest.mark.parametrize(
    "holder",
    [
        pytest.param(node_holder, id="node", marks=pytest.mark.node),
        pytest.param(java_holder, id="java", marks=pytest.mark.java),
        pytest.param(go_holder, id="go"),
    ],
)
def test_broker_ends_when_its_parent_is_killed(
    holder: Callable[[], list[str]], found_as: str, tmp_path: Path
) -> None:
    try:
        command = holder()
    except ToolchainMissing as missing:
        without_toolchain(missing)
        raise
    environment = environment_with(tmp_path, found_as)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(json.loads(parent.stdout.readline()))
        processes = tree(pid)
        assert pid in processes
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, processes)), f"the end of {processes}")
