"""A broker under attack, with everything that watches it, and the attacks as processes.

Owns the broker's processes, its files, the honest clients, the attackers and the record of faults;
a round decides what happens when. The invariant: whatever fails on the way, ``close`` ends every
process that was started here, and each problem is in the report, as is an attack that fails or does
not end.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from system_tests.attack import checks
from system_tests.attack.attacks.sasl import VIOLATION
from system_tests.attack.plan import Round
from system_tests.attack.report import Invariant, Report
from system_tests.attack.stalls import ALL, Fault, Sample, failures, stalls, unexcused
from system_tests.attack.targets import Target
from system_tests.connections.dialling import listener_address
from system_tests.faults.history import find_anomalies
from system_tests.faults.killing import in_same_process, kill, kill_all
from system_tests.faults.verifiable import Run
from system_tests.harness.brokers import RunningBroker, free_port, start_minibroker
from system_tests.harness.control import ask, processes, wait_ready
from system_tests.harness.fingerprints import create_foreign_files, fingerprint
from system_tests.harness.jars import PROJECT
from system_tests.harness.processes import resident_bytes, tree

ATTACKER_OVERTIME_S: Final = 60.0
SHOWN_CHARACTERS: Final = 1500


def start_module(module: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a module of this package as a process."""
    return subprocess.Popen(
        [sys.executable, "-m", f"system_tests.attack.{module}", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


class Attackers:
    """The attacks on one broker; ``names`` are those of all that were started."""

    def __init__(self, round_: Round, where: str, report: Report) -> None:
        self._round = round_
        self._where = where
        self._report = report
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []
        self.names: list[str] = []

    def start(self, name: str, seconds: float, target: Target) -> None:
        """Start an attack that ends by itself."""
        seed = f"{name} {self._round.seed}"
        process = start_module("attacker", name, seed, f"{seconds:.1f}", target.encoded())
        self._running.append((name, process))
        self.names.append(name)

    def wait(self) -> None:
        """Wait until all attacks have ended, and add up what they did."""
        for name, process in self._running:
            try:
                printed, complaint = process.communicate(
                    timeout=self._round.seconds + ATTACKER_OVERTIME_S
                )
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                self._problem(Invariant.ENDING, f"the attack {name!r} did not end")
                continue
            if process.returncode:
                text = complaint.decode()[-SHOWN_CHARACTERS:]
                self._problem(Invariant.ENDING, f"the attack {name!r} failed: {text}")
                continue
            self._add(json.loads(printed))
        self._running.clear()

    def _add(self, counts: dict[str, int]) -> None:
        for what, count in counts.items():
            if what.startswith(VIOLATION):
                self._problem(Invariant.AUTHENTICATION, f"{what}, {count} times")
            else:
                self._report.counts[what] += count

    def _problem(self, invariant: Invariant, text: str) -> None:
        self._report.found(invariant, self._where, text)

    def kill(self) -> None:
        """Kill those that still run."""
        for _, process in self._running:
            process.kill()
            process.communicate()
        self._running.clear()


STOP_WITHIN_S: Final = 30.0
MEMORY_PAUSE_S: Final = 1.0
FAULT_TAIL_S: Final = 1.0
"""After a killed process is replaced, its clients find it again."""

LOGS: Final = PROJECT / "build" / "reports"
"""Next to the reports of tests."""

PROBE_TOPIC: Final = "honest-probe"
RUN_TOPIC: Final = "honest-run"
RECORDED: Final = "RECORDED"
"""The listener behind the recording proxy."""


class AttackedBroker:
    """One broker of a round."""

    def __init__(
        self,
        round_: Round,
        folder: Path,
        report: Report,
        *,
        settings: Mapping[str, str] | None = None,
        listeners: Sequence[str] = (),
        wrapper: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.round = round_
        self.name = f"round {round_.number} ({round_.kind.value}, seed {round_.seed})"
        self.folder = folder
        self.report = report
        self.data_dir = folder / "data"
        self.kills: Counter[str] = Counter()
        self.faults: list[Fault] = []
        self._run: Run | None = None
        self._settings = {**round_.settings, **(settings or {})}
        self._listeners = listeners
        self._wrapper, self._environment = wrapper, environment
        self._port, self._recorded_port, self._proxy_port = free_port(), free_port(), free_port()
        self._control_port = free_port()  # Probes and attackers keep it across restarts.
        self._printed: list[str] = []
        self._probes: list[subprocess.Popen[bytes]] = []
        self.attackers = Attackers(round_, self.name, report)
        self._recording: subprocess.Popen[bytes] | None = None
        self._foreign: dict[str, str] = {}
        self._ending = threading.Event()
        self._peak_bytes = 0
        self._at_rest_bytes = 0
        self._restarts: dict[str, int] = {}
        self._sampler = threading.Thread(target=self._sample_memory, daemon=True)
        folder.mkdir(parents=True)
        self.broker = self._start()

    def __enter__(self) -> Self:
        try:
            self._at_rest_bytes = self._memory()
            self._restarts = self.restart_counts()
            self._plant_foreign_files()
        except BaseException:
            self.close()
            raise
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------- the broker

    def _start(self) -> RunningBroker:
        listeners = [f"{RECORDED}://127.0.0.1:{self._recorded_port}", *self._listeners]
        names = {"PLAINTEXT": f"PLAINTEXT://127.0.0.1:{self._port}"}
        protocols = {"PLAINTEXT": "PLAINTEXT", RECORDED: "PLAINTEXT"}
        for each in self._listeners:
            protocols[each.partition("://")[0]] = each.partition("://")[0]
        advertised = [names["PLAINTEXT"], f"{RECORDED}://127.0.0.1:{self._proxy_port}"]
        settings = {
            **self._settings,
            "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in protocols.items()),
            "advertised.listeners": ",".join([*advertised, *self._listeners]),
        }
        return start_minibroker(
            *("--control", f"127.0.0.1:{self._control_port}"),
            *(word for each in listeners for word in ("--listener", each)),
            data_dir=self.data_dir,
            settings=settings,
            listener=names["PLAINTEXT"],
            environment=self._environment,
            wrapper=self._wrapper,
        )

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    def kill(self, name: str) -> None:
        """Kill the process of a role, and wait until the broker is ready again."""
        hit = in_same_process(self.broker, name)
        self.kills.update(hit)
        self.report.counts["process kills"] += 1
        with self.fault(hit):
            kill(self.broker, name)
            wait_ready(self.broker)

    def kill_all(self) -> None:
        """Kill the complete broker and start it again on its data directory."""
        self.report.counts["whole-broker kills"] += 1
        with self.fault():
            self._check_restarts()
            kill_all(self.broker)
            self._keep_log()
            self.broker = self._start()
            self.kills.clear()
            self._restarts = self.restart_counts()

    @contextmanager
    def fault(self, hit: frozenset[str] = ALL) -> Iterator[None]:
        """Note that processes cannot serve until a moment after this ends."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.faults.append(Fault(started, time.monotonic() + FAULT_TAIL_S, hit))

    def _keep_log(self) -> None:
        self._printed.append(self.broker.printed())
        self.broker.forget()

    def restart_counts(self) -> dict[str, int]:
        return {name: each.restarts for name, each in processes(self.broker).items()}

    def count_torn(self, before: Mapping[str, int]) -> None:
        """Count a process that died within a write among the kills."""
        wait_ready(self.broker)
        for name, count in self.restart_counts().items():
            self.kills[name] += min(1, count - before.get(name, 0))

    def _check_restarts(self) -> None:
        for text in checks.restarts(self._restarts, self.restart_counts(), self.kills):
            self.problem(Invariant.RESTARTS, text)

    def freeze_clock(self, *, frozen: bool) -> None:
        ask(self.broker, "POST", "/v1/clock", {"freeze": frozen})

    # ------------------------------------------------------------------- what watches it

    def _memory(self) -> int:
        return resident_bytes(tree(self.broker.pid))

    def _sample_memory(self) -> None:
        while not self._ending.wait(MEMORY_PAUSE_S):
            self._peak_bytes = max(self._peak_bytes, self._memory())

    def _plant_foreign_files(self) -> None:
        before = fingerprint(self.folder)
        create_foreign_files(self.data_dir)
        create_foreign_files(self.folder / "others")
        after = fingerprint(self.folder)
        self._foreign = {name: each for name, each in after.items() if name not in before}

    def _check_foreign_files(self) -> None:
        after = fingerprint(self.folder)
        kept = {name: each for name, each in after.items() if name in self._foreign}
        for text in checks.changed_files(self._foreign, kept):
            self.problem(Invariant.FILES, text)
        self.report.counts["foreign files checked"] += len(self._foreign)

    def start_run(self, security: Mapping[str, str] | None = None) -> Run:
        """Start a verifiable producer and consumers."""
        self._run = Run(self.servers, RUN_TOPIC, security=security)
        self._run.wait_progress(records=20)
        return self._run

    def start_probes(self, listener: str = "PLAINTEXT", authority: str = "") -> None:
        """Start honest clients whose latency is measured, over a listener of the broker."""
        names = sorted(processes(self.broker))
        processors = [name for name in names if name.startswith("processor")]
        topic = f"{PROBE_TOPIC}-{listener.lower()}"
        ask(self.broker, "POST", "/v1/topics", {"name": topic, "partitions": 6})
        partitions = ask(self.broker, "GET", f"/v1/topics/{topic}")["partitions"]
        owners = {each["owner"]: each["partition"] for each in partitions}
        workers = sorted(owners)
        paths = [
            (processors[at % len(processors)], owners[worker], worker)
            for at in range(max(len(processors), len(workers)))
            for worker in [workers[at % len(workers)]]
        ]
        host, port = listener_address(self.broker, listener)
        wanted = {
            "host": host,
            "port": port,
            "control_url": self.broker.control_url,
            "topic": topic,
            "paths": paths,
            "authority": authority,
        }
        self._probes.append(start_module("probe", json.dumps(wanted)))

    def record_clients(self) -> str:
        """Record frames of real clients; returns the file that holds them."""
        file = self.folder / "recorded"
        behind = json.dumps(("127.0.0.1", self._recorded_port))
        self._recording = start_module("recording", str(self._proxy_port), behind, str(file))
        assert self._recording.stdout is not None
        line = self._recording.stdout.readline()
        if not line:
            _, complaint = self._recording.communicate()
            raise AssertionError(f"recording real clients failed: {complaint.decode()[-1500:]}")
        self.report.counts["frames recorded from real clients"] += json.loads(line)["frames"]
        return str(file)

    def target(self, recording: str = "") -> Target:
        assert self.broker.control_url is not None
        return Target(("127.0.0.1", self._port), self.broker.control_url, recording)

    # ------------------------------------------------------------------- the end

    def problem(self, invariant: Invariant, text: str) -> None:
        self.report.found(invariant, self.name, text)

    @contextmanager
    def checking(self, what: str) -> Iterator[None]:
        """Turn a failure into a problem, so that the checks after it still happen."""
        try:
            yield
        except Exception as failed:  # noqa: BLE001 (reported with everything else)
            self.problem(Invariant.ENDING, f"{what}: {type(failed).__name__}: {failed}")

    def finish(self) -> None:
        """Check everything that must hold at the end, then stop the broker."""
        with self.checking("the attackers"):
            self.attackers.wait()
        with self.checking("the honest clients"):
            self._check_probes()
        with self.checking("the history of the records"):
            self._check_history()
        with self.checking("the restarts"):
            self._check_restarts()
        self._ending.set()
        self._sampler.join()
        grown = max(0, self._peak_bytes - self._at_rest_bytes)
        self.report.grew(grown)
        request_memory = int(self.round.settings["queued.max.request.bytes"])
        for text in checks.growth(self._at_rest_bytes, self._peak_bytes, request_memory):
            self.problem(Invariant.MEMORY, text)
        self._end_recording()
        with self.checking("stopping"):
            status = self.broker.stop(within_s=STOP_WITHIN_S)
            if status:
                self.problem(Invariant.ENDING, f"the broker ended with status {status}")
        self._keep_log()
        self._check_logs()
        self._check_foreign_files()

    def _check_probes(self) -> None:
        for probe in self._probes:
            printed, complaint = probe.communicate(timeout=ATTACKER_OVERTIME_S)
            if probe.returncode:
                self.problem(Invariant.ENDING, f"a probe failed: {complaint.decode()[-1500:]}")
                continue
            seen: dict[str, Any] = json.loads(printed)
            for request, count in seen["requests"].items():
                self.report.counts[f"honest {request} requests"] += count
            for text in seen["failures"]:
                self.problem(Invariant.ENDING, text)
            samples = [
                Sample(started, ended, request, tuple(serving), *more)
                for started, ended, request, serving, *more in seen["samples"]
            ]
            self._check_samples(samples)
        self._probes.clear()

    def _check_samples(self, samples: list[Sample]) -> None:
        counted = unexcused(samples, self.faults)
        where = f"in {self.name} under {', '.join(self.attackers.names) or 'faults'}"
        for sample in counted:
            self.report.waited(sample.blamed_s, f"for {sample.request} {where}")
        stalled = stalls(counted)
        self.report.counts["stalls of honest clients"] += len(stalled)
        if stalled:
            longest = max(stalled, key=lambda each: each.blamed_s)
            self.problem(Invariant.STALLS, f"{len(stalled)} stalls, the longest: {longest}")
        failed = failures(counted)
        self.report.counts["errors of honest clients"] += len(failed)
        kinds: dict[str, list[Sample]] = defaultdict(list)
        for each in failed:
            kinds[f"{each.request}: {each.error}"].append(each)
        for kind, found in kinds.items():
            self.problem(Invariant.DISCONNECTS, f"{len(found)} times {kind}, first: {found[0]}")

    def _check_history(self) -> None:
        if self._run is None:
            return
        history = self._run.finish()
        self._run = None
        self.report.counts["records acknowledged"] += len(history.acknowledged)
        self.report.counts["records read back"] += len(history.log)
        self.report.counts["records not acknowledged"] += len(history.failed)
        anomalies = find_anomalies(history)
        for kind in ("lost", "duplicate", "nonmonotonic"):
            self.report.counts[f"records found {kind}"] += len(getattr(anomalies, kind))
        if anomalies:
            self.problem(Invariant.RECORDS, repr(anomalies))

    def _check_logs(self) -> None:
        printed = "\n".join(self._printed)
        for text in checks.crashes(printed):
            self.problem(Invariant.TRACEBACKS, text)
        self.report.log_messages += checks.messages(printed)
        if not self.faults:
            for line in checks.unexpected_exceptions(printed):
                self.problem(Invariant.TRACEBACKS, line)

    def _end_recording(self) -> None:
        if self._recording is not None:
            self._recording.communicate(timeout=ATTACKER_OVERTIME_S)
            self._recording = None

    def _save_log(self) -> None:
        """Keep the log of a broker with problems: its folder is removed."""
        if any(problem.round == self.name for problem in self.report.problems):
            LOGS.mkdir(parents=True, exist_ok=True)
            name = f"attack-{self.round.seed.replace('/', '-')}-{self.folder.name}.log"
            (LOGS / name).write_text("\n".join(self._printed))

    def close(self) -> None:
        """End everything that still runs, and remove the broker's files."""
        self._ending.set()
        self.attackers.kill()
        for process in (*self._probes, self._recording):
            if process is not None:
                process.kill()
                process.communicate()
        if self._run is not None:
            with suppress(Exception):
                self._run.abandon()
        if not self.broker.output.closed:
            family = tree(self.broker.pid)
            if family:
                kill_all(self.broker)
            self._keep_log()
        self._save_log()
        shutil.rmtree(self.folder, ignore_errors=True)
