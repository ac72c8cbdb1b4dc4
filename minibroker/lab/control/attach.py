"""Attaches the control API, the fault rules and the journal to the controller role.

Owns what starts with the controller and which requests of roles go to the laboratory. It must never
know an operation. Invariant: a broker without requests imports nothing for them, and one without
fault rules and journal nothing for these. Kafka has no equivalent.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

import trio

from minibroker.broker.log.data_directory import FAULT_RULES_FILE
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.process.environment import FIRST_INCARNATION
from minibroker.broker.settings import CONTROL_TOKEN, JOURNAL_ENABLE
from minibroker.broker.settings.listeners import META_ADDRESSES
from minibroker.control_url import with_token
from minibroker.lab.control.broker import ControlledBroker
from minibroker.lab.control.history import LAG_SAMPLE_S, USAGE_SAMPLE_S, committed_offsets
from minibroker.lab.observers.messages import FaultAct, FaultHeld, FaultMatched
from minibroker.runtime.hosts import resolver_name

if TYPE_CHECKING:
    import trio
    from starlette.types import ASGIApp

    from minibroker.broker.apis.base import ControllerScope
    from minibroker.broker.process.environment import Environment
    from minibroker.broker.roles.metadata_publisher import MetadataPublisher
    from minibroker.lab.control.operation import ApiContext, ApiOperation
    from minibroker.lab.faults.rulebook import Firing


# --------------------------------------------------- Listening socket and server of the control API
# Owns the functions that the launcher and the controller role call. Must never import the web
# framework before the first request: the launcher imports this module before the fork, only one
# process serves the API, and many brokers never get a request. The invariant: the socket is created
# once and outlives the processes that serve it, so the port stays the same after a restart of the
# controller. Kafka has no counterpart.


_log = EventLog("control")

LOAD_RETRY_S: Final = 1.0
"""Pause before another attempt to import the control API."""

TOKEN_BYTES: Final = 24

LISTEN_BACKLOG: Final = 64
"""Connections queued by the kernel while the controller is busy or restarting."""


def open_listener(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 selects a free port.

    Raises ``OSError`` with the address in its text if that fails.
    """
    try:
        found = socket.getaddrinfo(
            resolver_name(host), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        return _listening(socket.socket(family, kind, protocol), address)
    except OSError as error:
        # One argument only: with an errno, the message would start with its number.
        text = f"the control API can't listen on {host}:{port}: {error.strerror}"
        raise OSError(text) from error


def _listening(listener: socket.socket, address: Any) -> socket.socket:
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(LISTEN_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def listener_url(listener: socket.socket, token: str = "") -> str:
    """Return the URL of the listener; the loopback address replaces a wildcard address."""
    host, port = listener.getsockname()[:2]
    if host in META_ADDRESSES:
        host = "::1" if ":" in host else "127.0.0.1"
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    return with_token(url, token)


def token_for(listener: socket.socket, given: str | None) -> str:
    """Return the token of the API: the given one, or a new one if other hosts can connect.

    An empty one is none.
    """
    if given is not None:
        return given
    host = listener.getsockname()[0]
    if ip_address(host).is_loopback:
        return ""
    from secrets import token_urlsafe  # Needed by few brokers.

    return token_urlsafe(TOKEN_BYTES)


async def serve(
    context: ApiContext,
    listener: socket.socket,
    stopping: trio.Event,
    *,
    allowed_hosts: Iterable[str] = (),
    token: str = "",
    sleep: Callable[[float], Awaitable[None]] = trio.sleep,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the control API on ``listener`` until ``stopping`` is set.

    Reports itself as started at once, because the socket already listens. The first request waits
    while the API and the operations of ``context`` are imported. Returns when requests in progress
    are answered; cancel it if that takes too long.
    ``sleep`` waits in real time before a failed import, e.g. without free descriptors, is retried.
    ``allowed_hosts`` are names of this broker that requests may use in addition to IP addresses
    and ``localhost``; ``token`` is one that requests must have.
    """
    task_status.started()
    if not await _wait_for_connection(listener, stopping):
        return
    while (app := _load(context, allowed_hosts, token)) is None:
        await sleep(LOAD_RETRY_S)
    from minibroker.lab.control.server import serve_app

    await serve_app(app, listener, stopping)


def _load(context: ApiContext, allowed_hosts: Iterable[str], token: str) -> ASGIApp | None:
    try:
        from minibroker.lab.control import server  # noqa: F401
        from minibroker.lab.control.http import make_app

        return make_app(context, allowed_hosts, token)
    except (OSError, ImportError) as error:
        _log.error("the control API can't be loaded; retrying", reason=error)
        return None


async def _wait_for_connection(listener: socket.socket, stopping: trio.Event) -> bool:
    """Wait for a connection; return False if ``stopping`` is set first."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_when, stopping, nursery.cancel_scope)
        await trio.lowlevel.wait_readable(listener)
        nursery.cancel_scope.cancel()
    return not stopping.is_set()


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def attach_control(
    env: Environment,
    scope: ControllerScope,
    publisher: MetadataPublisher,
    nursery: trio.Nursery,
) -> ControlledBroker:
    """Attach the control API to the controller role, before other roles can register.

    Its tasks run in the role's ``nursery``.
    """
    broker = ControlledBroker(env, scope, publisher, nursery.start_soon, _operations)
    _handle_fault_requests(broker)
    is_first = env.incarnation == FIRST_INCARNATION
    if not is_first and (env.data_dir / FAULT_RULES_FILE).exists():
        _ = broker.faults  # Roles that register get the rules.
    if env.journal_counts.is_on or (is_first and env.settings[JOURNAL_ENABLE]):
        broker.journal.begin()
    if env.seed is not None and is_first:
        from minibroker.lab.control.seed import seed_before_ready

        report_ready = env.ready
        seeding = partial(seed_before_ready, broker, env.seed, report_ready, scope.refuse)
        env.ready = partial(nursery.start_soon, seeding)
    if env.control is not None:
        nursery.start_soon(sample_forever, broker)
        nursery.start_soon(
            partial(
                serve,
                broker,
                env.control,
                env.stopping,
                allowed_hosts=[host for host, _ in env.endpoints.values()],
                token=env.settings[CONTROL_TOKEN] or "",
                sleep=env.clock.sleep_real,
            )
        )
    return broker


def _handle_fault_requests(broker: ControlledBroker) -> None:
    """Handle the requests of roles about fault rules, which are imported by the first of them."""

    async def decide(matched: FaultMatched) -> tuple[Firing, ...]:
        return broker.faults.decide(matched)

    async def hold(held: FaultHeld) -> None:
        await broker.faults.hold(held)

    async def act(request: FaultAct) -> None:
        await broker.faults.act(request)

    broker.publisher.handlers |= {FaultMatched: decide, FaultHeld: hold, FaultAct: act}


async def sample_forever(broker: ControlledBroker) -> None:
    """Sample the usage of quotas and the lag of groups while there are any, until cancelled."""
    clock, ticks = broker.env.clock, 0
    while True:
        await clock.sleep_real(USAGE_SAMPLE_S)
        ticks += 1
        try:
            await _sample(broker, has_lag=ticks % (LAG_SAMPLE_S // USAGE_SAMPLE_S) == 0)
        except OSError as error:  # Nothing can be imported without free descriptors.
            _log.failure("usage and lag were not sampled", error)


async def _sample(broker: ControlledBroker, *, has_lag: bool) -> None:
    if broker.scope.quotas.enabled:
        # Imported with the first quota or offset: most brokers in tests have none.
        from minibroker.lab.control.quotas import UsageHistory

        broker.state(UsageHistory).sample()
    if has_lag:
        offsets = await committed_offsets(broker)
        if offsets:
            from minibroker.lab.control.lag import LagHistory

            await broker.state(LagHistory).sample(offsets)


def _operations() -> Sequence[ApiOperation]:
    # Imported with the first request: most brokers in tests get none.
    from minibroker.lab.control.operations import OPERATIONS

    return OPERATIONS
