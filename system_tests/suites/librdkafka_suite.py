"""librdkafka's own test suite, built from its sources in Confluent's package for Node.js.

Owns the build, the configuration file of the tests and one process for each test, as a test that
times out ends its process. What the tests are expected to do is in `expected/librdkafka.txt`. Tests
that need no broker do not run. Tests with consumers run twice: in classic groups, and in consumer
groups (KIP-848), where their names end in `/consumer`. Invariant: all tests of a
scenario run against one broker, which must survive.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from system_tests.harness.archives import npm_package, source_distribution, unpacked
from system_tests.harness.brokers import start_minibroker
from system_tests.harness.jars import CACHE, PROJECT, ToolchainMissing, one_at_a_time
from system_tests.harness.jars import run as run_tool
from system_tests.suites.expectations import Outcome, Result
from system_tests.suites.kafka_scripts import write_scripts
from system_tests.suites.outcomes import from_librdkafka

NAME = "librdkafka"
SUITES: Final = PROJECT / "system_tests" / "suites"
SOURCES: Final = npm_package(
    "@confluentinc/kafka-javascript",
    "1.10.1",
    "ada7d703bb1d3237e2292bfabf438d663b6160c9f1ac2a2406b5dc4257c81b66",
)
"""The newest package of a registry with librdkafka's tests: those of librdkafka 2.15.1."""
BROKER_VERSION = "4.4.0"
"""The version whose features the tests may use."""
SHORT = ("0011", "0077", "0081", "0090", "0098", "0103", "0129", "0175", "0177")
"""The tests that CI runs: batches, compaction, admin, idempotence, transactions, share groups."""
SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "num.partitions": "4",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
"""What the tests expect of brokers."""
FOLDER: Final = CACHE / "suite-librdkafka"
"""Where the configuration, the tests' output and the broker's log are."""
KAFKA: Final = FOLDER / "kafka"
"""A folder with Kafka's scripts, some of which the tests call."""
HEADERS: Final = source_distribution(
    "python-rapidjson", "1.25", "97c1de449552ec28ac5ae89350c2b53e4c5d21a9b4308d7a1630b1099e5db9fc"
)
"""The headers of RapidJSON, with which the tests read librdkafka's statistics."""
NO_AUTO_CREATE = ("0045", "0107", "0111")
"""The tests that need a broker which creates no topics by itself."""
PARALLEL = 2
LIMIT_S = 400
"""The longest time of one test's process."""
TIMEOUT_MULTIPLIER = 1.5
"""For the tests' own time-outs, on a machine with other work."""


def run(*, short: bool) -> dict[str, Result]:
    """Run the tests of each scenario and return how each ended."""
    tests = built()
    write_scripts(KAFKA)
    results = run_scenario(tests, "default", SHORT if short else numbers_of(tests))
    if not short:
        results |= run_scenario(tests, "default", with_consumers(tests), protocol="consumer")
        others = run_scenario(tests, "noautocreate", NO_AUTO_CREATE)
        # Each scenario skips the tests of the other one.
        ran = {name for name, each in others.items() if each.outcome is not Outcome.SKIPPED}
        results |= {name: others[name] for name in ran}
    return results


def run_scenario(
    tests: Path, scenario: str, numbers: Sequence[str], *, protocol: str = ""
) -> dict[str, Result]:
    """Run the tests of these numbers against one broker, with a group protocol or the default."""
    kind = f"{scenario}-{protocol}" if protocol else scenario
    automatic = str(scenario != "noautocreate").lower()
    broker = start_minibroker(settings={**SETTINGS, "auto.create.topics.enable": automatic})
    configuration = FOLDER / f"{kind}.conf"
    configuration.write_text(
        f"bootstrap.servers={broker.bootstrap_servers}\n"
        f"test.timeout.multiplier={TIMEOUT_MULTIPLIER}\n"
    )
    environment = {
        **os.environ,
        "KAFKA_PATH": str(KAFKA),
        "BROKERS": broker.bootstrap_servers,
        "RDKAFKA_TEST_CONF": str(configuration),
        "TEST_SCENARIO": scenario,
        "TEST_KAFKA_VERSION": BROKER_VERSION,  # With its option, the runner frees an argument.
        "LD_LIBRARY_PATH": f"{tests.parent}/src:{tests.parent}/src-cpp",
    }
    environment.pop("CI", None)  # With it, the suite skips tests.
    if protocol:
        environment["TEST_CONSUMER_GROUP_PROTOCOL"] = protocol

    def run_one(number: str) -> dict[str, Result]:
        return run_test(tests, number, environment, FOLDER / f"{number}-{kind}.txt")

    try:
        with ThreadPoolExecutor(PARALLEL) as pool:
            suffix = f"/{protocol}" if protocol else ""
            results = {
                name + suffix: result
                for each in pool.map(run_one, numbers)
                for name, result in each.items()
            }
        assert broker.stop() == 0
        assert "Traceback" not in broker.printed()
    finally:
        (FOLDER / f"{kind}-broker.log").write_text(broker.printed())
        broker.forget()
    return results


def numbers_of(tests: Path) -> Sequence[str]:
    """Return the numbers of the automatic tests, which their files' names begin with."""
    found = {each.name[:4] for each in tests.glob("0*.c*") if re.match(r"\d{4}-", each.name)}
    return sorted(found)


def with_consumers(tests: Path) -> Sequence[str]:
    """Return the numbers of the tests whose consumers have the runner's group protocol."""
    sources = {each.name[:4]: each.read_text() for each in tests.glob("0*.c*")}
    return [
        number
        for number in numbers_of(tests)
        if re.search(r"consumer|CONSUMER", sources[number])
        and "share_consumer" not in sources[number]
    ]


def run_test(
    tests: Path, number: str, environment: Mapping[str, str], output: Path
) -> dict[str, Result]:
    """Run the tests of one number that need a broker; what they print is in `output`."""
    command = ["./test-runner", "-p1", "-L", "-Q"]
    with output.open("w") as file:
        try:
            subprocess.run(
                command,
                check=False,
                cwd=tests,
                env={**environment, "TESTS": number},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            file.write(f"not finished in {LIMIT_S} s\n")
    return from_librdkafka(output.read_text(errors="replace"))


def built() -> Path:
    """Return the folder of the built tests; fetched and compiled if need be."""
    inputs = repr((SOURCES, HEADERS)) + (SUITES / "one_replica.h").read_text()
    digest = hashlib.sha256(inputs.encode()).hexdigest()[:12]
    folder = CACHE / f"librdkafka-{digest}"
    for program in ("npm", "make", "g++"):
        if shutil.which(program) is None:
            raise ToolchainMissing(f"`{program}` is not on the path: install it for {NAME}'s tests")
    package = unpacked(SOURCES)
    with one_at_a_time(NAME):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
                sources = Path(temporary) / "librdkafka"
                shutil.copytree(package / "deps" / "librdkafka", sources)
                build(sources)
                shutil.move(sources, folder)
    return folder / "tests"


def build(sources: Path) -> None:
    """Compile librdkafka and its tests; without optimization this takes half the time."""
    for script in [sources / "configure", *sources.rglob("*.sh"), *sources.rglob("*.py")]:
        script.chmod(0o755)
    options = ["--disable-optimization", "--disable-gssapi", "--disable-curl"]
    write_scripts(KAFKA)
    json = f"CPPFLAGS=-I{unpacked(HEADERS)}/rapidjson/include"
    one_replica = f"-include {SUITES / 'one_replica.h'}"
    failure = "librdkafka was not built"
    run_tool(["env", json, "./configure", *options], failure, sources)
    if "#define WITH_ZSTD 1" not in (sources / "config.h").read_text():
        raise ToolchainMissing(
            f"zstd's headers are missing: install libzstd-dev for {NAME}'s tests"
        )
    run_tool(["make", "-j2", "libs"], failure, sources)
    make = ["env", f"{json} {one_replica}", f"KAFKA_PATH={KAFKA}", "make", "-j2", "-C", "tests"]
    run_tool([*make, "build", "java"], failure, sources)
