"""One scenario that puts a client into the situations of the rules of good behavior.

Owns the order of situations, each with the fault rules that cause it. It must never know a client
library, or judge. Invariant: every situation lasts as long as its faults and a client with Kafka's
defaults need, and each client has a broker of its own, so all traffic in the journal is the
client's.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from minibroker.client.control import journal_pages
from minibroker.lab.verdicts.all_rules import RULE_OF, RULES
from minibroker.lab.verdicts.judging import judge
from minibroker.lab.verdicts.saved_journal import entries_of_lines
from minibroker.lab.verdicts.situations import BehaviorRule
from minibroker.testing import MiniBroker
from minibroker.testing.verdicts import PAGE_ENTRIES
from minibroker.testing.workload import ClientProgram
from system_tests.verdicts.page import JudgedJournal, ScenarioRun

TOPIC: Final = "verdicts"
GROUP: Final = "verdicts-readers"
KEYS: Final = (f"{TOPIC}-0", f"{TOPIC}-1")
THROTTLE_MS: Final = 1000
ERRORS_MS: Final = 3000
"""How long requests fail in a situation about retries."""
REFUSED_MS: Final = 7000
"""How long connections are refused."""
OUTAGE_MS: Final = 1500
"""How long requests or connections fail in a situation about jitter: for the first waits, which
have not reached their maximum."""
OUTAGES: Final = 4
USED_SENDS: Final = 15
"""Records between two outages, so that only the connection to the leader is in use."""
LATER_SENDS: Final = 5
"""Records that a producer sends after the loss of its state."""
USED_PAUSE_S: Final = 0.1
HEARTBEATS_S: Final = 3.5
"""Time in which every client sends a heartbeat; librdkafka's interval is 3 s by default."""
ATTEMPTS_MAX: Final = 5

PATIENCE_S: Final = 60.0
"""How long a client may take until its group is stable."""


class DrivenClient:
    """A client program that carries out operations on request."""

    def __init__(
        self,
        command: Sequence[str],
        broker: MiniBroker,
        process: int,
        credentials: Mapping[str, str] = {},
    ) -> None:
        options = {
            "bootstrap_servers": broker.bootstrap_servers,
            "process": process,
            "transactional_id": None,
            "group": GROUP,
            "isolation_level": "read_committed",
            "idempotence": True,
            **credentials,
        }
        self._program = ClientProgram(command, options)
        self._process = process
        self._values = itertools.count(process * 1_000_000)
        self.name = self._program.name

    def subscribe(self) -> None:
        """Join the group."""
        self._ask("subscribe", keys=list(KEYS))

    def send(self, count: int, pause_s: float = 0.0) -> None:
        """Send records one after the other; errors of the client are ignored."""
        for _ in range(count):
            self._ask("send", steps=[{"send": KEYS[0], "value": next(self._values)}])
            time.sleep(pause_s)

    def poll_for(self, seconds: float) -> None:
        """Poll for some time; errors of the client are ignored."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.poll()

    def poll(self) -> None:
        """Poll once; errors of the client are ignored."""
        self._ask("poll", steps=[{"poll": {}}])

    def poll_until(self, condition: Callable[[], bool], *others: DrivenClient) -> None:
        """Poll with all clients until a condition holds. Raises TimeoutError."""
        end = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"{self.name} did not get there in {PATIENCE_S} s")
            for client in (self, *others):
                client.poll()

    def close(self) -> None:
        """Close the client's producer and consumer."""
        self._program.close()

    def _ask(self, operation: str, **fields: Any) -> None:
        line = {"process": self._process, "type": "invoke", "operation": operation, **fields}
        self._program.ask(line)


class ClientScenario:
    """The scenario with one client library on a broker of its own."""

    def __init__(self, broker: MiniBroker, command: Sequence[str]) -> None:
        self.broker = broker
        self._command = command

    def run(self) -> str:
        """Go through all situations; return the name of the client."""
        self.broker.create_topic(TOPIC, partitions=len(KEYS))
        client = DrivenClient(self._command, self.broker, 0)
        try:
            for situation in (
                self.start,
                self.throttle,
                self.move_leader,
                self.move_coordinator,
                self.rebalance,
                self.lose_membership,
                self.fail_requests,
                self.fail_repeatedly,
                self.refuse_connections,
            ):
                situation(client)
            client.poll_for(HEARTBEATS_S)
        finally:
            client.close()
        return client.name

    @contextmanager
    def _faults(self, *rules: dict[str, object]) -> Iterator[None]:
        faults = self.broker.faults
        for rule in rules:
            faults.add(str(rule.get("action", "error")), **_without_action(rule))
        try:
            yield
        finally:
            faults.clear()

    def _has_members(self, count: int) -> Callable[[], bool]:
        def has_members() -> bool:
            return any(
                each["group_id"] == GROUP and each["members"] == count and each["state"] == "Stable"
                for each in self.broker.groups()
            )

        return has_members

    # Situations -------------------------------------------------------------------------------

    def start(self, client: DrivenClient) -> None:
        """Join the group, whose coordinator is not available at first, and then still loading."""
        missing = {"api": "FindCoordinator", "error": "COORDINATOR_NOT_AVAILABLE"}
        loading = {"api": "OffsetFetch", "error": "COORDINATOR_LOAD_IN_PROGRESS"}
        with self._faults({**missing, "until_ms": ERRORS_MS}, {**loading, "first": 2}):
            client.subscribe()
            client.poll_until(self._has_members(1))
        client.send(3)
        client.poll_for(1)

    def throttle(self, client: DrivenClient) -> None:
        """Throttle a produce and a fetch without muting, so that the client has to wait."""
        for api in ("Produce", "Fetch"):
            rule = {"action": "throttle", "throttle_ms": THROTTLE_MS, "mute": False, "first": 1}
            with self._faults({"api": api, **rule}):
                if api == "Produce":
                    client.send(4, pause_s=0.15)
                client.poll_for(2 * THROTTLE_MS / 1000)

    def move_leader(self, client: DrivenClient) -> None:
        """Answer that another broker is the leader, or that the epoch is another."""
        for error in ("NOT_LEADER_OR_FOLLOWER", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH"):
            with self._faults({"api": "Fetch", "error": error, "until_ms": ERRORS_MS}):
                client.poll_for(ERRORS_MS / 1000 + 0.5)
        with self._faults({"api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER", "first": 4}):
            client.send(1)

    def move_coordinator(self, client: DrivenClient) -> None:
        """Answer that another broker is the coordinator of the group."""
        for api in ("OffsetCommit", "Heartbeat"):
            with self._faults({"api": api, "error": "NOT_COORDINATOR", "first": 2}):
                client.send(1)
                client.poll_for(HEARTBEATS_S)
        client.poll_until(self._has_members(1))

    def rebalance(self, client: DrivenClient) -> None:
        """Let another member take one of the partitions, and leave again."""
        with ExitStack() as stack:
            other = DrivenClient(self._command, self.broker, 1)
            stack.callback(other.close)
            other.subscribe()
            client.poll_until(self._has_members(2), other)
            client.send(2)
            client.poll_for(2)
        client.poll_until(self._has_members(1))

    def lose_membership(self, client: DrivenClient) -> None:
        """Answer that the member is unknown, or its generation old."""
        for error in ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION"):
            with self._faults({"api": "Heartbeat", "error": error, "first": 1}):
                client.send(1)
                client.poll_for(HEARTBEATS_S)
            client.poll_until(self._has_members(1))

    def fail_requests(self, client: DrivenClient) -> None:
        """Answer with errors that can be retried, for some time."""
        with self._faults(
            {"api": "Produce", "error": "NOT_ENOUGH_REPLICAS", "until_ms": ERRORS_MS},
            {"api": "Fetch", "error": "KAFKA_STORAGE_ERROR", "until_ms": ERRORS_MS},
        ):
            client.send(1)
            client.poll_for(ERRORS_MS / 1000)

    def fail_repeatedly(self, client: DrivenClient) -> None:
        """Answer with an error that can be retried, several times for a short time."""
        for _ in range(OUTAGES):
            rule = {"api": "Produce", "error": "NOT_ENOUGH_REPLICAS", "until_ms": OUTAGE_MS}
            with self._faults(rule):
                client.send(1)
            client.send(1)

    def lose_producer_state(self, client: DrivenClient) -> None:
        """Answer a producer that its sequence is not the next one."""
        client.send(2)
        lost = {"api": "Produce", "error": "OUT_OF_ORDER_SEQUENCE_NUMBER", "first": 1}
        with self._faults(lost):
            client.send(LATER_SENDS)

    def refuse_repeatedly(self, client: DrivenClient) -> None:
        """Refuse the producer's new connections several times for a short time."""
        for _ in range(OUTAGES):
            client.send(USED_SENDS, pause_s=USED_PAUSE_S)
            with self._faults(
                {"action": "refuse", "until_ms": OUTAGE_MS},
                {"action": "close"},
            ):
                client.send(1)

    def refuse_connections(self, client: DrivenClient) -> None:
        """Refuse new connections for some time, and close all that are open."""
        with self._faults(
            {"action": "refuse", "until_ms": REFUSED_MS},
            {"action": "close"},
        ):
            client.poll_for(REFUSED_MS / 1000 + 1)
        client.poll_until(self._has_members(1))


def _without_action(rule: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in rule.items() if name != "action"}


SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": 0,
    "auto.create.topics.enable": False,
    "journal.max.bytes": 1024**3,
}
"""A client in a loop must not fill the journal, or nothing is known of what happened before."""

CREDENTIALS: Final = {"username": "verdicts", "password": "secret-of-verdicts"}
SESSION_MS: Final = 4000
"""Lifetime of a SASL session."""
SESSIONS: Final = 3
"""Sessions for which a client is used."""
SASL_SETTINGS: Final = {
    **SETTINGS,
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "connections.max.reauth.ms": SESSION_MS,
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'user_{CREDENTIALS["username"]}="{CREDENTIALS["password"]}";'
    ),
}


OLD_BROKER_SETTINGS: Final = {**SETTINGS, "persona": "kafka-2.0"}
"""Kafka 2.0 has no version of ApiVersions in which clients name their software."""


class RecordedSituation(NamedTuple):
    """A journal of a run, and what is judged by it."""

    file: str
    title: str
    """What the broker did; empty for the scenario."""
    rules: Sequence[BehaviorRule]


def _rules(*names: str) -> list[BehaviorRule]:
    return [RULE_OF[name] for name in names]


SCENARIO: Final = RecordedSituation("scenario.jsonl", "", RULES)
SASL_SESSIONS: Final = RecordedSituation(
    "sessions.jsonl", "with SASL sessions", _rules("reauthentication")
)
OLD_BROKER: Final = RecordedSituation(
    "old-broker.jsonl", "with Kafka 2.0", _rules("api-versions-fallback")
)
PRODUCER_OUTAGES: Final = RecordedSituation(
    "outages.jsonl",
    "a producer during outages",
    _rules("reconnect-backoff", "reconnect-backoff-jitter"),
)
LOST_STATE: Final = RecordedSituation(
    "lost-state.jsonl",
    "a producer whose state is lost",
    _rules("producer-reset", "sequence-numbers"),
)
RECORDED: Final = (SCENARIO, SASL_SESSIONS, OLD_BROKER, PRODUCER_OUTAGES, LOST_STATE)
NAME_FILE: Final = "client.txt"


def record(command: Sequence[str], folder: Path) -> None:
    """Run the scenario and its situations apart; write the client's name and the journals."""
    folder.mkdir(parents=True)
    with MiniBroker(settings=SETTINGS) as broker, broker.journal:
        name = ClientScenario(broker, command).run()
        _save(broker, folder, SCENARIO)
    _record_sessions(command, folder)
    _record_fallback(command, folder)
    _record_outages(command, folder)
    _record_lost_state(command, folder)
    (folder / NAME_FILE).write_text(name, encoding="utf-8")


def judged(folder: Path) -> tuple[str, ScenarioRun]:
    """Judge the journals of a run; return the client's name, too."""
    found = []
    for situation in RECORDED:
        with (folder / situation.file).open(encoding="utf-8") as lines:
            entries = list(entries_of_lines(lines))
        report = judge(entries, "*", rules=situation.rules)
        assert not report.dropped, f"{folder / situation.file} lacks entries"
        found.append(JudgedJournal(situation.title, report.verdicts, entries))
    return (folder / NAME_FILE).read_text(encoding="utf-8"), found


def _record_sessions(command: Sequence[str], folder: Path) -> None:
    """Use a client for several SASL sessions."""
    with _client_of(command, SASL_SETTINGS, CREDENTIALS) as (broker, client):
        _use(client)
        client.close()
        _save(broker, folder, SASL_SESSIONS)


def _record_fallback(command: Sequence[str], folder: Path) -> None:
    """Use a client with an old broker."""
    with _client_of(command, OLD_BROKER_SETTINGS) as (broker, client):
        _use(client)
        client.close()
        _save(broker, folder, OLD_BROKER)


def _record_outages(command: Sequence[str], folder: Path) -> None:
    """Use a producer during outages."""
    with _client_of(command, SETTINGS) as (broker, client):
        ClientScenario(broker, command).refuse_repeatedly(client)
        client.close()
        _save(broker, folder, PRODUCER_OUTAGES)


def _record_lost_state(command: Sequence[str], folder: Path) -> None:
    """Use a producer whose state the broker has lost; it may stop then."""
    with _client_of(command, SETTINGS) as (broker, client):
        ClientScenario(broker, command).lose_producer_state(client)
        client.close()
        _save(broker, folder, LOST_STATE)


def _use(client: DrivenClient) -> None:
    client.subscribe()
    client.send(1)
    client.poll_for(SESSIONS * SESSION_MS / 1000)


@contextmanager
def _client_of(
    command: Sequence[str], settings: Mapping[str, object], credentials: Mapping[str, str] = {}
) -> Iterator[tuple[MiniBroker, DrivenClient]]:
    """Start a broker of its own for a client."""
    with MiniBroker(settings=settings) as broker, broker.journal:
        broker.create_topic(TOPIC, partitions=len(KEYS))
        client = DrivenClient(command, broker, 0, credentials)
        try:
            yield broker, client
        finally:
            client.close()


def _save(broker: MiniBroker, folder: Path, situation: RecordedSituation) -> None:
    """Write the whole journal of a broker."""
    with (folder / situation.file).open("w", encoding="utf-8") as file:
        for page in journal_pages(broker.control, frames="true", limit=PAGE_ENTRIES):
            assert not page["pending"], "a process of the broker does not respond"
            file.writelines(f"{json.dumps(entry)}\n" for entry in page["entries"])
