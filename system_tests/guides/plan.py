"""What a reader brings to the pages, and which blocks are not run here.

Owns tables; it runs nothing but the checks of its reasons. It must never hold a command of a page
as a whole. Invariant: every entry names a page and the beginning of a block or a text on it, and
`test_guides.py` fails if that is no longer there, or if a block could be run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Final, NamedTuple

from system_tests.guides.blocks import ROOT


class Place(NamedTuple):
    """A block: its page, and the start of its text."""

    page: str
    beginning: str


class Reason(NamedTuple):
    """Why blocks are not run, and whether that still holds."""

    text: str
    holds: Callable[[], bool]


def _no_engine() -> bool:
    """Whether no container engine answers."""
    docker = shutil.which("docker")
    return docker is None or _fails(docker, "info")


def _fails(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode != 0


def _no_release() -> bool:
    """Whether the changelog has no released version."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return re.search(r"^## v?\d", changelog, re.MULTILINE) is None


NO_ENGINE: Final = Reason("it needs the daemon of a container engine", _no_engine)
NO_RELEASE: Final = Reason("minibroker is on no package index yet", _no_release)

NOT_RUN: Final = {
    Place("docs/installation.md", "uvx"): NO_RELEASE,
    Place("docs/installation.md", "HATCH_BUILD_HOOKS_ENABLE=1 pip"): NO_RELEASE,
    Place("docs/installation.md", "chmod +x minibroker-linux"): NO_RELEASE,
    Place("docs/guides/container.md", "docker run --rm -p 29092"): NO_ENGINE,
    Place("docs/guides/container.md", "docker run --rm -p 9092:9092 -e"): NO_ENGINE,
    Place("docs/guides/container.md", "docker run --rm -it"): NO_ENGINE,
    Place("docs/guides/container.md", "docker run --rm -p 9092:9092 -v"): NO_ENGINE,
    Place("docs/guides/container.md", "make dist"): NO_ENGINE,
    Place("docs/guides/dashboards.md", "make dist"): NO_ENGINE,
}

ELSEWHERE: Final = {
    "docs/learn/*": "tests/cli/test_learn.py",
    "docs/exhibits/*": "system_tests/exhibits/test_exhibits.py",
    "docs/getting-started-pipeline.md": "system_tests/pipeline/test_getting_started.py",
    "docs/guides/pipeline.md": "system_tests/pipeline/test_cluster.py",
    "minibroker/languages/java/README.md": "system_tests/languages/test_packages.py",
}
"""Pages whose blocks another test runs."""

NPM_TEST: Final = "rm -f broker.json"
"""A script of CI on two pages, which tests/test_docs.py runs."""

IN_CHECKOUT: Final = frozenset(
    {
        "README.md",
        "docs/getting-started.md",
        "docs/guides/check-a-history.md",
        "docs/guides/release.md",
        "docs/guides/zookeeper.md",
        "docs/performance.md",
        "minibroker/languages/go/README.md",
        "minibroker/languages/node/README.md",
    }
)
"""Pages for people who have the checkout."""

BROKER: Final = {
    "docs/guides/command-line.md": "--set authorizer.class.name=org.apache.kafka.metadata"
    ".authorizer.StandardAuthorizer --set super.users=User:ANONYMOUS",
    "docs/guides/test-consumer-groups.md": "--set group.consumer.heartbeat.interval.ms=500"
    " --set group.consumer.min.heartbeat.interval.ms=500",
    "docs/guides/test-share-groups.md": "--set group.share.heartbeat.interval.ms=500"
    " --set group.share.min.heartbeat.interval.ms=500",
    "docs/guides/proxy.md": "--control 127.0.0.1:0",
    "docs/guides/judge-a-client.md": "--set journal.enable=true",
}
"""Options of the broker that a reader has who did not start one on the page."""

TEST: Final = (
    "printf 'def test_it(minibroker_topic):\\n    assert minibroker_topic\\n' > test_it.py"
)
QUOTA: Final = "--alter --entity-type clients --entity-name app --add-config request_percentage=50"
STABLE: Final = 'curl "$control_url/v1/groups/{group}?state=Stable&members=2&timeout_ms=60000"'
THROTTLED: Final = """
        minibroker configs --user ANONYMOUS --client minibroker-cli \\
            --alter --add-config producer_byte_rate=1000
        head -c 20000 /dev/zero | tr '\\0' x | minibroker produce cats"""
MEMBER: Final = "python -m system_tests.guides.clients"

FILES: Final = {"docs/guides/messages-in-tests.md": ("toml", "orders.toml")}
"""Blocks in a language that are files on their page."""

ADDED: Final = "until minibroker faults list | grep -q {rule}; do sleep 0.1; done"
TWO_MEMBERS: Final = f"""
        {MEMBER} classic billing orders one &
        {MEMBER} classic billing orders two"""

BEFORE: Final = {
    Place("README.md", "minibroker configs --client"): THROTTLED,
    Place("docs/getting-started.md", "make run"): """
        minibroker start --data-dir kafka-logs
        minibroker topics create orders
        minibroker produce orders one two
        ctrl-c""",
    Place("docs/getting-started.md", "minibroker configs"): "minibroker topics create cats",
    Place("docs/guides/check-a-history.md", "minibroker check"): """
        echo '{"history": "minibroker", "version": 1}' > history.jsonl""",
    Place("docs/guides/command-line.md", "minibroker consume"): """
        minibroker topics create cats --partitions 3 --config segment.ms=600000
        minibroker produce cats {1..30}
        minibroker consume cats --from-beginning --group cat-lovers --max-messages 10
        mkdir -p ~/.zsh/functions ~/.config/fish/completions""",
    Place("docs/guides/faults.md", "minibroker faults"): "minibroker topics create orders",
    Place("docs/guides/judge-a-client.md", "minibroker judge"): f"{MEMBER} produce - orders my-app",
    Place("docs/guides/messages-in-tests.md", "pytest"): TEST,
    Place("docs/guides/messages-in-tests.md", "curl"): "control_url=$(control-url)",
    Place("docs/guides/platforms.md", "minibroker start"): TEST,
    Place("docs/guides/proxy.md", "minibroker proxy --upstream kafka1:9092,kafka2"): """
        minibroker topics create orders""",
    Place("docs/guides/proxy.md", "minibroker proxy --upstream kafka1:9093"): """
        unset MINIBROKER_CONTROL
        ctrl-c
        minibroker start --tls --listener SSL://127.0.0.1:9093
        minibroker client-config --for java > client.properties""",
    Place("docs/guides/proxy.md", "minibroker proxy --upstream kafka1:9092 --tls"): """
        ctrl-c
        minibroker start""",
    Place("docs/guides/proxy.md", "export MINIBROKER_CONTROL=http://127.0.0.1:8080  #"): """
        ctrl-c proxy
        minibroker proxy --upstream 127.0.0.1:9092 --control-port 8080""",
    Place("docs/guides/proxy.md", "minibroker judge"): f"""
        MINIBROKER_BOOTSTRAP_SERVER=127.0.0.1:19092 {MEMBER} produce - orders shop""",
    Place("docs/guides/quotas.md", "minibroker configs --alter"): f"echo '{QUOTA}' > quotas.txt",
    Place("docs/guides/quotas.md", "minibroker quotas list"): THROTTLED,
    Place("docs/guides/record-and-replay.md", "minibroker replay capture.jsonl --boot"): """
        minibroker topics create orders
        minibroker produce orders one
        ctrl-c
        minibroker start""",
    Place("docs/guides/record-and-replay.md", "minibroker replay capture.jsonl --serve"): "ctrl-c",
    Place("docs/guides/test-consumer-groups.md", "member="): f"""
        minibroker topics create orders --partitions 4
        {MEMBER} consumer readers orders one &
        {MEMBER} consumer readers orders two &
        {STABLE.format(group="readers")}""",
    Place("docs/guides/test-share-groups.md", "member="): f"""
        minibroker topics create orders
        {MEMBER} share packers orders one &
        {MEMBER} share packers orders two &
        {STABLE.format(group="packers")}""",
    Place("docs/guides/trace-requests.md", "minibroker trace"): "minibroker topics create orders",
    Place("minibroker/languages/go/README.md", "go mod"): "go mod init example.test/orders",
    Place("minibroker/languages/node/README.md", "npm install"): "npm init -y",
}
"""What a reader has done before a block: the topics, files and groups of which the page speaks."""

ALONGSIDE: Final = {
    Place("README.md", "minibroker faults add"): f"""
        {ADDED.format(rule="Produce")}
        minibroker produce cats hello""",
    Place("docs/guides/faults.md", "minibroker faults add"): f"""
        {ADDED.format(rule="joins")}
        {MEMBER} classic orders-readers orders one &
        {MEMBER} classic orders-readers orders two""",
    Place("docs/guides/messages-in-tests.md", "curl"): TWO_MEMBERS,
    Place("docs/guides/proxy.md", "export MINIBROKER_CONTROL=http://127.0.0.1:8080\n"): f"""
        export MINIBROKER_CONTROL=http://127.0.0.1:8080
        {ADDED.format(rule="delay")}
        minibroker produce orders hello -b 127.0.0.1:19092""",
    Place("docs/guides/test-consumer-groups.md", "member="): f"""
        {ADDED.format(rule="revoked")}
        {STABLE.format(group="readers")}
        members=$(minibroker groups describe readers --json | jq -c '[.members[].member]')
        minibroker faults act assign group=readers \\
            assignment="$(jq -c '{{(.[0]): {{}}, (.[1]): {{orders: [0, 1, 2, 3]}}}}' <<<"$members")"
        """,
    Place("docs/guides/test-share-groups.md", "member="): f"""
        {ADDED.format(rule="acknowledged")}
        {STABLE.format(group="packers")}
        minibroker produce orders one two""",
    Place("docs/guides/trace-requests.md", "minibroker trace"): f"""
        {MEMBER} classic readers orders shop &
        while sleep 0.5; do {MEMBER} produce - orders shop; done""",
    Place("docs/reference/control-api.md", "curl"): TWO_MEMBERS,
}
"""What the reader's own programs do while a block and those after it run."""

REPLACED: Final = {
    "README.md": {"git clone <this repository> && cd minibroker": ""},
    "docs/getting-started.md": {
        "http://127.0.0.1:42013": "$(control-url)",
        "/var/kafka-logs": "kafka-logs",
    },
    "docs/guides/messages-in-tests.md": {"kafka.example": "127.0.0.1"},
    "docs/guides/proxy.md": {
        "kafka1:9092,kafka2:9092": "127.0.0.1:9092",
        **dict.fromkeys(["kafka1", "kafka2"], "127.0.0.1"),
    },
    "docs/guides/zookeeper.md": {"mvn -q -f": "cp -r $ZOOKEEPER_JARS zookeeper-jars || mvn"},
    # These take up to half an hour: make says what it would do.
    "docs/guides/release.md": {"make ": "make -n "},
    "docs/performance.md": {"make ": "make -n "},
    "minibroker/languages/go/README.md": {"path/to/": "./"},
    "minibroker/languages/node/README.md": {"path/to/": "./"},
}
"""Names in place of which a reader writes his own ones."""
