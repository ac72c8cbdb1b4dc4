"""Runs a broker as processes: creates shared resources before the fork, and starts each child.

Owns the shared resources and the start of each role in its process. It must never know what roles
do. Modules are imported and sockets bound once, before the supervisor forks. Invariant: shared
memory, clock and listening sockets are created before the fork and outlive every child, so a
restarted child continues with their current state. `preload` imports what a request may need later,
because an import fails in a process that has no descriptors left.
"""

from __future__ import annotations

import codecs
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import SystemRandom
from select import PIPE_BUF
from typing import Any, NamedTuple

import trio

from minibroker.broker.log.data_directory import SECRET_BYTES
from minibroker.broker.metrics import log
from minibroker.broker.metrics.metrics import ProcessMetrics
from minibroker.broker.process.environment import (
    CONTROLLER,
    RECORDER,
    WORKER,
    Environment,
    RoleRefusedError,
    handoff_name,
    role_name,
    tokens_name,
)
from minibroker.broker.process.journal_counts import JournalCounts
from minibroker.broker.process.local_worker import LocalWorker
from minibroker.broker.quotas.ledger import QuotaLedger
from minibroker.broker.settings import Settings
from minibroker.broker.settings.definitions import (
    ACTIVITY_ENABLE,
    ADVERTISED_LISTENERS,
    AUTHORIZER_CLASS_NAME,
    BROKER_ID,
    CONTROL_LISTENER,
    CONTROL_SECURITY_DIR,
    CONTROL_TOKEN,
    LOG_DIRS,
    NODE_ID,
    NUM_IO_THREADS,
    NUM_NETWORK_THREADS,
    QUOTA_WINDOW_NUM,
    QUOTA_WINDOW_SIZE_SECONDS,
    RUNTIME_PORTABLE,
    SASL_OAUTHBEARER_EXPECTED_ISSUER,
    ZOOKEEPER_CONNECT,
)
from minibroker.broker.settings.listeners import advertised_endpoints, has_tls
from minibroker.broker.settings.setting import HostPort
from minibroker.lab.control.attach import listener_url, open_listener, token_for
from minibroker.lab.observers.attaching import ProcessObservers
from minibroker.launch.layout import (
    ProcessPlan,
    RoleInstance,
    journal_counts,
    process_plans,
    run_roles,
    stop_groups,
)
from minibroker.launch.startup import (
    BrokerDirectories,
    StartError,
    bind,
    broker_secret,
    check_identities,
    open_directories,
    raise_descriptor_limit,
)
from minibroker.ready import Ready, as_json, as_text, command_name
from minibroker.runtime.addressing import SocketPathError, TcpSource, UnixTransport
from minibroker.runtime.arena import Arena
from minibroker.runtime.clock import SharedClock
from minibroker.runtime.roles import RoleStatus, RoleTable
from minibroker.runtime.supervisor import (
    ChildContext,
    ChildSpec,
    Exit,
    ProcessEvent,
    ProcessEventKind,
    bound_last_seconds,
    is_orphan,
    supervise,
    wait_until_gone,
)
from minibroker.runtime.system import is_portable, resident_memory, use_portable_variants
from minibroker.runtime.worktime import WorkTime


def preload(settings: Settings) -> None:
    """Import before the fork what a request may need later with these settings.

    After a role is ready, serving a request opens no Python file. The control API is the exception:
    it is imported by its first request, and a failed import is repeated.
    """
    import minibroker_protocol.codecs  # noqa: F401 - decompresses batches

    for encoding in ("utf-16-le", "utf-16-be"):  # Used for the partition of a group, and targets.
        codecs.lookup(encoding)
    if settings[AUTHORIZER_CLASS_NAME]:
        import minibroker.broker.apis.authorization.special_checks
    protocols = (settings.security_protocol(one.name) for one in settings.client_listeners)
    if any(map(has_tls, protocols)):
        import minibroker.broker.network.tls  # noqa: F401

        codecs.lookup("utf-32-be")  # Used for names in renewed certificates, as is utf-16-be.


PRINTED_EVENTS = frozenset({ProcessEventKind.DIED, ProcessEventKind.KILLED})
"""Process events that are printed to standard error; the others are part of normal operation."""

RECORDER_NICENESS = 10
"""Nice value of the recorder: other roles get about ten times its CPU time on a busy core."""


class Shared(NamedTuple):
    """Resources shared by all processes, created before the fork."""

    settings: Settings
    directories: BrokerDirectories
    transport: UnixTransport
    clock: SharedClock
    arena: Arena
    ledger: QuotaLedger
    journal_counts: JournalCounts
    started_us: int
    sockets: dict[str, list[socket.socket]]
    """By listener: one, or one for each processor in the sharded mode."""
    endpoints: dict[str, tuple[str, int]]
    control: socket.socket
    secret: bytes
    rebuild_topics: bool
    seed: Mapping[str, Any] | None
    refusals: RoleRefusals


class RoleRefusals:
    """Why roles could not start, from their processes to that of the supervisor."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()
        for fd in (self._read_end, self._write_end):
            os.set_blocking(fd, False)

    def report(self, text: str) -> None:
        """Report the reason of a role that is about to end."""
        with suppress(BlockingIOError):  # Only the reasons of the start are read.
            os.write(self._write_end, text.encode()[:PIPE_BUF])

    def read(self) -> str:
        """Return the reasons of all roles so far, or nothing."""
        with suppress(BlockingIOError):
            return os.read(self._read_end, PIPE_BUF).decode(errors="replace")
        return ""


def _ignore(_: str) -> None:
    """Do nothing: the URL is not needed, and the reason is in standard error."""


def start(
    settings: Settings,
    *,
    json_ready: bool,
    rebuild_topics: bool = False,
    seed: Mapping[str, Any] | None = None,
    parent_pid: int | None = None,
    client_properties: str = "",
    on_control: Callable[[str], None] = _ignore,
    on_failed_start: Callable[[str], None] = _ignore,
) -> int:
    """Run a broker until it is stopped; returns its exit status (``supervisor.Exit``).

    Prints to standard output when it is ready, and to standard error why it cannot start; calls
    ``on_failed_start`` with the same. ``seed`` is created before that.
    ``rebuild_topics`` rebuilds the topics of a lost config store
    from their logs. With ``parent_pid`` the broker also stops when that parent has ended.
    ``client_properties`` is a file that clients need, which is printed; ``on_control`` is called
    before that with the URL of the control API, without its token.
    """
    if settings[RUNTIME_PORTABLE]:
        use_portable_variants()
    settings = settings.with_actual_values({RUNTIME_PORTABLE.name: is_portable()})
    try:
        raise_descriptor_limit()
        check_identities(settings)
        preload(settings)
        needs_store = settings[ZOOKEEPER_CONNECT] is None and not rebuild_topics
        with open_directories(
            settings.data_dir, settings[NODE_ID], needs_store=needs_store
        ) as directories:
            try:
                shared = _share(settings, directories, rebuild_topics, seed)
            except SocketPathError as error:
                raise StartError(str(error)) from None
            try:
                return _supervise(
                    shared,
                    json_ready=json_ready,
                    parent_pid=parent_pid,
                    client_properties=client_properties,
                    on_control=on_control,
                    on_failed_start=on_failed_start,
                )
            finally:
                shared.transport.close()
    except StartError as error:
        sys.stderr.write(f"minibroker: {error}\n")
        on_failed_start(str(error))
        return Exit.FAILED


def _share(
    settings: Settings,
    directories: BrokerDirectories,
    rebuild_topics: bool,
    seed: Mapping[str, Any] | None,
) -> Shared:
    processors, workers = settings[NUM_NETWORK_THREADS], settings[NUM_IO_THREADS]
    listeners = settings.client_listeners
    sockets = bind(listeners, settings)
    host, port = settings[CONTROL_LISTENER]
    try:
        control = open_listener(host, port)
    except OSError as error:
        raise StartError(f"{error}; choose another address or port with control.listener") from None
    ports = {name: socks[0].getsockname()[1] for name, socks in sockets.items()}
    advertised = settings[ADVERTISED_LISTENERS]
    endpoints = advertised_endpoints(listeners, advertised or (), ports, socket.gethostname())
    directories.lock.describe(f"minibroker on {_addresses(endpoints)}")
    clock = SharedClock()
    return Shared(
        settings=settings.with_actual_values(_actual_values(settings, directories, control)),
        directories=directories,
        transport=UnixTransport(
            directories.home,
            [
                CONTROLLER,
                *(role_name(WORKER, index) for index in range(workers)),
                *(tokens_name(index) for index in range(processors)),
                *([RECORDER] if settings[ACTIVITY_ENABLE] else []),
            ],
            [handoff_name(index) for index in range(processors)],
        ),
        clock=clock,
        started_us=clock.real_us(),
        arena=Arena.create(settings.request_memory_bytes, processors),
        ledger=QuotaLedger(
            settings[QUOTA_WINDOW_NUM],
            settings[QUOTA_WINDOW_SIZE_SECONDS] * 1000,
            shared=True,
            recorders=processors,
        ),
        journal_counts=journal_counts(settings),
        sockets=sockets,
        endpoints=endpoints,
        control=control,
        secret=broker_secret(directories, SECRET_BYTES),
        rebuild_topics=rebuild_topics,
        seed=seed,
        refusals=RoleRefusals(),
    )


def _actual_values(
    settings: Settings, directories: BrokerDirectories, control: socket.socket
) -> dict[str, object]:
    """The values that are known when the sockets are open.

    Clients that read the broker's configs learn the address of its control API, and where its data
    is.
    """
    control_address = HostPort(settings[CONTROL_LISTENER].host, control.getsockname()[1])
    values: dict[str, object] = {
        BROKER_ID.name: settings[NODE_ID],
        LOG_DIRS.name: (str(directories.data_dir),),
        CONTROL_LISTENER.name: control_address,
        CONTROL_TOKEN.name: token_for(control, settings[CONTROL_TOKEN]),
    }
    if settings[CONTROL_SECURITY_DIR] and not settings[SASL_OAUTHBEARER_EXPECTED_ISSUER]:
        from minibroker.token_issuer import issuer_url  # Needed by few brokers.

        values[SASL_OAUTHBEARER_EXPECTED_ISSUER.name] = issuer_url(listener_url(control))
    return values


def _addresses(endpoints: dict[str, tuple[str, int]]) -> str:
    return ",".join(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in endpoints.values()
    )


def _supervise(
    shared: Shared,
    *,
    json_ready: bool,
    parent_pid: int | None,
    client_properties: str,
    on_control: Callable[[str], None],
    on_failed_start: Callable[[str], None],
) -> int:
    settings = shared.settings
    was_ready = False

    def print_ready() -> None:
        nonlocal was_ready
        was_ready = True
        directories = shared.directories
        on_control(listener_url(shared.control))
        ready = Ready(
            bootstrap_servers=_addresses(shared.endpoints),
            control_url=listener_url(shared.control, settings[CONTROL_TOKEN] or ""),
            data_dir=str(directories.data_dir),
            temporary=directories.temporary,
            pid=os.getpid(),
            client_properties=client_properties,
        )
        program = command_name(sys.argv[0], shutil.which(os.path.basename(sys.argv[0])))
        print(as_json(ready) if json_ready else as_text(ready, program), flush=True)  # noqa: T201

    def print_event(event: ProcessEvent) -> None:
        if event.kind in PRINTED_EVENTS:
            process = f"{event.name} (pid {event.pid})"
            sys.stderr.write(f"minibroker: {process} {event.kind.value}: {event.text}\n")
        elif event.kind is ProcessEventKind.GAVE_UP and not was_ready:
            on_failed_start(shared.refusals.read() or event.text)

    log.configure("supervisor", shared.clock.wall_ms)  # each process replaces the name
    for warning in settings.warnings:
        sys.stderr.write(f"minibroker: {warning}\n")
    return supervise(
        [_spec(shared, plan) for plan in process_plans(settings)],
        stop_groups=stop_groups(settings),
        on_ready=print_ready,
        on_event=print_event,
        parent_pid=parent_pid,
    )


def _spec(shared: Shared, plan: ProcessPlan) -> ChildSpec:
    def main(context: ChildContext) -> None:
        environments = _environments(shared, plan, context)
        log.configure(context.name, shared.clock.wall_ms)
        if plan.has(RECORDER):
            os.nice(RECORDER_NICENESS)
        trio.run(
            _run_process,
            environments,
            context.lifeline_fd,
            shared.refusals,
            clock=shared.clock,
            instruments=[environments[0].work_time],
        )
        if plan.has(CONTROLLER) and is_orphan(context.lifeline_fd):
            _clean_up_without_supervisor(shared.directories.home, context)

    return ChildSpec(plan.name, main, is_optional=plan.has(RECORDER))


def _environments(
    shared: Shared, plan: ProcessPlan, context: ChildContext
) -> Sequence[Environment]:
    """The environments of the roles of one process."""
    work_time = WorkTime()
    local_worker = LocalWorker(work_time) if len(plan.roles) > 1 else None
    observers = ProcessObservers(shared.journal_counts)
    found = [
        observers.prepare(_environment(shared, instance, context, work_time, local_worker))
        for instance in plan.roles
    ]
    found[0].metrics.watch_memory(resident_memory())
    return found


def _role_statuses(plans: Sequence[ProcessPlan], table: RoleTable) -> list[RoleStatus]:
    """The states of all roles: those of a combined process have the same one."""
    return [
        status._replace(name=instance.name)
        for plan, status in zip(plans, table.read(), strict=True)
        for instance in plan.roles
    ]


def _environment(
    shared: Shared,
    instance: RoleInstance,
    context: ChildContext,
    work_time: WorkTime,
    local_worker: LocalWorker | None,
) -> Environment:
    settings = shared.settings
    return Environment(
        role=instance.role,
        index=instance.number,
        incarnation=context.incarnation,
        processors=settings[NUM_NETWORK_THREADS],
        workers=settings[NUM_IO_THREADS],
        settings=settings,
        transport=shared.transport,
        clock=shared.clock,
        arena=shared.arena,
        ledger=shared.ledger,
        started_us=shared.started_us,
        metrics=ProcessMetrics(instance.name),
        work_time=work_time,
        local_worker=local_worker,
        random=SystemRandom(),  # Member ids must not be guessable.
        data_dir=shared.directories.data_dir,
        journal_counts=shared.journal_counts,
        rebuild_topics=shared.rebuild_topics,
        seed=shared.seed,
        starts_processes=True,
        secret=shared.secret,
        ready=context.ready,
        control=shared.control,
        statuses=partial(_role_statuses, process_plans(settings), context.roles),
        listeners={
            name: TcpSource(socks[instance.number])
            for name, socks in shared.sockets.items()
            if instance.number < len(socks)
        },
        endpoints=shared.endpoints,
        stopping=trio.Event(),
    )


async def _run_process(
    environments: Sequence[Environment], lifeline: int, refusals: RoleRefusals
) -> None:
    env = environments[0]
    refusal, is_ready = "", _watch_ready(env)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stop_on_signal, env)
        nursery.start_soon(_stop_without_supervisor, env, lifeline)
        nursery.start_soon(_cancel_if_not_ready, env, is_ready, nursery.cancel_scope)
        try:
            await run_roles(environments)
        except RoleRefusedError as refused:
            refusal = str(refused)
        nursery.cancel_scope.cancel()
    if refusal:
        refusals.report(refusal)
        raise SystemExit(refusal)  # printed without a traceback, because it is not a bug


def _watch_ready(env: Environment) -> trio.Event:
    """Return an event that is set when the role is ready."""
    is_ready, report_ready = trio.Event(), env.ready

    def ready() -> None:
        is_ready.set()
        report_ready()

    env.ready = ready
    return is_ready


async def _cancel_if_not_ready(
    env: Environment, is_ready: trio.Event, scope: trio.CancelScope
) -> None:
    # A role that is not ready has no work to finish, and may wait for a role that never starts.
    await env.stopping.wait()
    if not is_ready.is_set():
        scope.cancel()


async def _stop_on_signal(env: Environment) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            env.stopping.set()


async def _stop_without_supervisor(env: Environment, lifeline: int) -> None:
    await trio.lowlevel.wait_readable(lifeline)
    bound_last_seconds()
    env.stopping.set()


def _clean_up_without_supervisor(home: Path, context: ChildContext) -> None:
    """Wait for the other processes to exit, then remove ``home``, as the supervisor would do."""
    own_pid = os.getpid()
    wait_until_gone(status.pid for status in context.roles.read() if status.pid not in (0, own_pid))
    shutil.rmtree(home, ignore_errors=True)
