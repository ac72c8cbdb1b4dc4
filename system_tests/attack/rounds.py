"""The rounds of an attack: what happens to the broker, one function for each kind.

Owns the order of events within a round; starting, watching and checking are in
``attacked_broker``. The invariant: a round leaves the broker healthy and lets its honest clients go
on for a moment before the final checks, so that a broker that does not recover is found.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from minibroker.runtime.restarts import RESTART_WINDOW_S, RESTARTS_MAX
from system_tests.attack.attacked_broker import AttackedBroker
from system_tests.attack.checks import changed_files
from system_tests.attack.disks import FaultyDisk, Mode
from system_tests.attack.plan import Kind, Round
from system_tests.attack.report import Invariant, Report
from system_tests.connections.dialling import listener_address
from system_tests.faults.killing import in_same_process, one_of_each_process
from system_tests.faults.verifiable import Run
from system_tests.harness.brokers import StartFailed, start_minibroker
from system_tests.harness.fingerprints import create_foreign_files, fingerprint
from system_tests.harness.waiting import TimedOut, wait_until
from system_tests.security.conftest import PASSWORDS, secured_settings

CHECKS_S: Final = 12.0
"""What starting and checking take of a round's time."""

ATTACK_MIN_S: Final = 5.0
DESCRIPTORS: Final = (200, 400, 1024)
INJECTED_WITHIN_S: Final = 3.0
FAULT_S: Final = (0.2, 2.0)
KILLS_IN_WINDOW_MAX: Final = RESTARTS_MAX - 2
"""The supervisor gives up a process that dies too often: that is right, and not what is tested."""


def run_round(round_: Round, folder: Path, report: Report) -> None:
    """Run one round; problems go into the report."""
    report.rounds[round_.kind.value] += 1
    ROUNDS[round_.kind](round_, folder, report)


def _attack_s(round_: Round) -> float:
    return max(ATTACK_MIN_S, round_.seconds - CHECKS_S)


def _protocol(round_: Round, folder: Path, report: Report) -> None:
    with AttackedBroker(round_, folder, report) as attacked:
        run = attacked.start_run()
        attacked.start_probes()
        recording = attacked.record_clients()
        if round_.is_clock_frozen:
            attacked.freeze_clock(frozen=True)
        for name in ("frames", "batches", "connections"):
            attacked.attackers.start(name, _attack_s(round_), attacked.target(recording))
        with attacked.checking("the attackers"):
            attacked.attackers.wait()
        if round_.is_clock_frozen:
            attacked.freeze_clock(frozen=False)
        with attacked.checking("progress after the attack"):
            run.wait_progress(records=20)
        attacked.finish()


def _kills(round_: Round, folder: Path, report: Report) -> None:
    dice = random.Random(f"kills {round_.seed}")
    with ExitStack() as stack:
        killers = []
        for number in range(round_.brokers):
            attacked = AttackedBroker(round_, folder / str(number), report)
            stack.enter_context(attacked)
            killers.append(Killer(attacked, dice))
            attacked.start_probes()
            attack = dice.choice(("frames", "batches", "connections"))
            attacked.attackers.start(attack, _attack_s(round_), attacked.target())
        deadline = time.monotonic() + _attack_s(round_)
        while time.monotonic() < deadline:
            killer = dice.choice(killers)
            with killer.attacked.checking("progress while processes are killed"):
                killer.kill()
        for killer in killers:
            killer.attacked.finish()
            check_rejected_directories(killer.attacked)


class Killer:
    """Kills the processes of a broker, as often as its supervisor allows."""

    def __init__(self, attacked: AttackedBroker, dice: random.Random) -> None:
        self.attacked = attacked
        self._run = attacked.start_run()
        self._dice = dice
        self._killed: list[tuple[float, str]] = []

    def kill(self) -> None:
        """Kill a process or all of them, and wait until records are acknowledged again."""
        if self._dice.random() < 0.15:
            self.attacked.kill_all()
        else:
            self._kill_one()
        self._run.wait_progress(records=self._dice.randrange(1, 40), also_consumed=False)

    def _kill_one(self) -> None:
        name = self._dice.choice(one_of_each_process(self.attacked.broker))
        now = time.monotonic()
        recent = [at for at, who in self._killed if who == name and now - at < RESTART_WINDOW_S]
        if len(recent) < KILLS_IN_WINDOW_MAX:
            self._killed.append((now, name))
            self.attacked.kill(name)


def _disk(round_: Round, folder: Path, report: Report) -> None:
    folder.mkdir(parents=True)
    home = folder / "broker"
    disk = FaultyDisk(folder / "rules", home / "data")
    dice = random.Random(f"disk {round_.seed}")
    with AttackedBroker(round_, home, report, environment=disk.environment) as attacked:
        run = attacked.start_run()
        attacked.start_probes()
        deadline = time.monotonic() + _attack_s(round_)
        while time.monotonic() < deadline:
            with attacked.checking("progress after a storage fault"):
                _break_disk(attacked, run, disk, dice)
        report.counts["failed file calls"] += disk.injected
        report.counts["torn writes"] += disk.torn
        attacked.finish()
        check_rejected_directories(attacked)


def _break_disk(attacked: AttackedBroker, run: Run, disk: FaultyDisk, dice: random.Random) -> None:
    """Put one fault in force, end it, and wait until appends resume."""
    mode = dice.choice([mode for mode in Mode if mode is not Mode.HEALTHY])
    injected, restarts = disk.injected, attacked.restart_counts()
    owners = [name for name in restarts if name.startswith(("worker", "controller"))]
    hit = frozenset().union(*(in_same_process(attacked.broker, name) for name in owners))
    with attacked.fault(hit):
        disk.set(mode, after_bytes=dice.choice((0, 100, 5000)))
        try:
            wait_until(lambda: disk.injected > injected, "a fault", within_s=INJECTED_WITHIN_S)
        except TimedOut:
            pass  # Nothing was synced, or nothing produced: then there was no fault.
        else:
            attacked.report.counts[f"disk faults: {mode.name.lower().replace('_', ' ')}"] += 1
        time.sleep(dice.uniform(*FAULT_S))
        disk.set(Mode.HEALTHY)
        if mode is Mode.TORN:
            attacked.count_torn(restarts)
        run.wait_progress(records=20, also_consumed=False)
    if dice.random() < 0.2:
        attacked.kill_all()


def _descriptors(round_: Round, folder: Path, report: Report) -> None:
    dice = random.Random(f"descriptors {round_.seed}")
    limit = dice.choice(DESCRIPTORS)
    wrapper = ("prlimit", f"--nofile={limit}:{limit}")
    with AttackedBroker(round_, folder, report, wrapper=wrapper) as attacked:
        run = attacked.start_run()
        attacked.start_probes()
        with attacked.fault():
            attacked.attackers.start("descriptors", _attack_s(round_), attacked.target())
            with attacked.checking("the attackers"):
                attacked.attackers.wait()
        with attacked.checking("progress after descriptors are free again"):
            run.wait_progress(records=20)
            afterwards = Run(attacked.servers, "afterwards", partitions=2)
            afterwards.wait_progress(records=20)
            afterwards.finish()
        attacked.finish()


def _security(round_: Round, folder: Path, report: Report) -> None:
    folder.mkdir(parents=True)
    names = ("SSL", "SASL_SSL", "SASL_PLAINTEXT")
    with AttackedBroker(
        round_,
        folder / "broker",
        report,
        settings=_security_settings(folder),
        listeners=[f"{name}://127.0.0.1:0" for name in names],
    ) as attacked:
        tls, sasl_tls, sasl = (listener_address(attacked.broker, name) for name in names)
        authority = str(folder / "authority.pem")
        security = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": PASSWORDS["alice"],
            "ssl.ca.location": authority,
            "bootstrap.servers": f"{sasl_tls[0]}:{sasl_tls[1]}",
        }
        attacked.start_run(security)
        attacked.start_probes("SSL", authority)
        target = attacked.target()._replace(tls=tls, sasl_tls=sasl_tls, sasl=sasl)
        for name in ("tls", "sasl", "frames"):
            attacked.attackers.start(name, _attack_s(round_), target)
        attacked.finish()


def _security_settings(folder: Path) -> dict[str, str]:
    """Those of the security tests, with SASL without TLS too, and without client certificates."""
    settings = secured_settings(folder)
    users = settings["listener.name.sasl_ssl.plain.sasl.jaas.config"]
    settings["listener.name.sasl_plaintext.plain.sasl.jaas.config"] = users
    settings["listener.name.ssl.ssl.client.auth"] = "none"
    return settings


def check_rejected_directories(attacked: AttackedBroker) -> None:
    """Start on directories of others: each start must fail and change nothing."""
    foreign = attacked.folder / "foreign"
    create_foreign_files(foreign / "plain")
    kafka = foreign / "kafka"
    (kafka / "orders-0").mkdir(parents=True)
    (kafka / "orders-0" / f"{0:020d}.log").write_bytes(b"records")
    (kafka / "orders-0" / "partition.metadata").write_text(
        "version: 0\ntopic_id: 0pmlEJFpSqOAUbLdSYKMBw"
    )
    (kafka / "meta.properties").write_text(
        "node.id=1\nversion=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\n"
    )
    before = fingerprint(foreign)
    for directory in sorted(foreign.iterdir()):
        try:
            started = start_minibroker(data_dir=directory)
        except StartFailed:
            attacked.report.counts["foreign data directories rejected"] += 1
        else:
            started.kill()
            started.forget()
            attacked.problem(Invariant.FILES, f"a broker started on the foreign {directory.name}")
    after = fingerprint(foreign)
    # The lock is the only file that a start may leave in a directory that it rejects.
    after = {name: each for name, each in after.items() if not name.endswith("/.lock")}
    for text in changed_files(before, after):
        attacked.problem(Invariant.FILES, text)


ROUNDS: Final[dict[Kind, Callable[[Round, Path, Report], None]]] = {
    Kind.PROTOCOL: _protocol,
    Kind.KILLS: _kills,
    Kind.DISK: _disk,
    Kind.DESCRIPTORS: _descriptors,
    Kind.SECURITY: _security,
}
