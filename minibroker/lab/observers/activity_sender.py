"""Sends activity events of acceptor and processors to the recorder.

Owns events that are not sent yet, and the number of dropped ones. It must never know what the
recorder does with them. Invariant: reporting an event never waits and memory is bounded, so a
request is never delayed by more than the report itself, some microseconds; an event is written or
counted as dropped, or both if the recorder dies while writing. If only a share of
the connections is recorded, the choice depends only on the connection's number, so all processes
agree; OpenTelemetry's ``TraceIdRatioBased`` does the same. Kafka has a request log at level DEBUG.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from minibroker.broker.admission.connection_events import ADMITTED, ConnectionFacts
from minibroker.broker.connections.limits import client_ip
from minibroker.broker.network.request_observer import RequestObserver
from minibroker.broker.process.environment import RECORDER, Environment
from minibroker.broker.process.messages import ActivityBatch, ActivityWritten
from minibroker.broker.settings import ACTIVITY_SAMPLE
from minibroker.lab.activity.events import (
    UNWRITTEN_MAX,
    ActivityClient,
    ActivityEvent,
    Check,
    ConnectionStep,
    Ordinals,
    Request,
    pack,
)
from minibroker.runtime.clock import whole_ms
from minibroker.runtime.rpc import Channel, ChannelClosed

if TYPE_CHECKING:
    from minibroker.broker.network.client_connection import ClientConnection
    from minibroker.broker.network.quota_stage import QuotaChecks, RequestCost
    from minibroker.broker.quotas.manager import QuotaCheck


_BITS: Final = 64
_GOLDEN: Final = 0x9E3779B97F4A7C15
"""2 to the 64th over the golden ratio: its multiples are spread evenly over 64 bits."""


def is_sampled(connection: int, share: float) -> bool:
    """Whether a connection is recorded when this share of all connections is."""
    if share >= 1:
        return True
    hashed = connection * _GOLDEN & (1 << _BITS) - 1
    return hashed < share * 2.0**_BITS


PENDING_MAX: Final = 16_384
"""Unsent events that one process keeps; further ones are dropped."""

CHUNK_EVENTS: Final = 256
"""Events sent in one message, which takes about 0.1 ms."""

DELAY_S: Final = 0.1
"""How long fewer events than that may wait for more."""

NAME_CHARACTERS_MAX: Final = 255
"""Characters kept of names of users and clients, which are chosen by clients."""

_STEPS: Final = {
    "accepted": ConnectionStep.ACCEPTED,
    "waiting": ConnectionStep.DELAYED,
    "held": ConnectionStep.HELD,
    ADMITTED: ConnectionStep.ADMITTED,
    "refused": ConnectionStep.REFUSED,
    "closed": ConnectionStep.CLOSED,
}
"""By the kind of a connection's event; a connection that was handed over is not reported."""

FINISH_S: Final = 2.0
"""How long sending the last events may take when the broker stops, in real time."""


class ActivitySender:
    """Sender of one process; ``run`` must be running."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._share = env.settings[ACTIVITY_SAMPLE]
        self._epoch_us = env.clock.epoch_s * 1e6
        self._pending: list[ActivityEvent] = []
        self._has_events = trio.Event()
        self._chunk_full = trio.Event()
        self._all_sent = trio.Event()
        self._dropped = 0
        self._unwritten = 0
        self._dropped_unwritten = 0
        """Drops reported to the recorder that it has not written yet."""
        self._has_room = trio.Event()
        self._is_finishing = False

    def samples(self, connection: int) -> bool:
        """Whether a connection belongs to the sample that is recorded."""
        return is_sampled(connection, self._share)

    def time_us(self, now: float) -> int:
        """Convert seconds of the broker's clock to microseconds, the unit of events."""
        return int(self._epoch_us + now * 1e6)

    def report(self, event: ActivityEvent) -> None:
        """Report an event of a connection in the sample."""
        pending = self._pending
        if len(pending) >= PENDING_MAX:
            self._drop(1)
            return
        pending.append(event)
        if len(pending) == 1:
            self._has_events.set()
        elif len(pending) == CHUNK_EVENTS:
            self._chunk_full.set()

    def report_connection(
        self,
        kind: str,
        connection: ConnectionFacts,
        now: float,
        reason: str | None,
        delay_ms: int | None,
    ) -> None:
        """Report an event of a connection, at a time in seconds of the broker's clock."""
        step = _STEPS.get(kind)
        if step is not None and self.samples(connection.number):
            peer = connection.listener, connection.number, client_ip(connection.peer[0])
            self.report((self.time_us(now), whole_ms(now), peer, step.value, reason, delay_ms))

    def _drop(self, count: int) -> None:
        self._dropped += count
        self._env.metrics.activity_dropped(count)

    async def run(self) -> None:
        """Send events to the recorder, over all its restarts, until cancelled."""
        while True:
            channel = await self._env.transport.connect(RECORDER)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._send_events, channel)
                    await self._receive_receipts(channel)
            except* ChannelClosed:
                pass  # The recorder died; the next call waits for its restart.
            finally:
                channel.close()
            # Some may have been written, but there is no way to know.
            self._drop(self._unwritten)
            self._dropped += self._dropped_unwritten
            self._unwritten = self._dropped_unwritten = 0

    async def _receive_receipts(self, channel: Channel) -> None:
        while True:
            written: ActivityWritten = await channel.receive()
            self._unwritten -= written.events
            self._dropped_unwritten -= written.dropped
            self._has_room.set()

    async def _send_events(self, channel: Channel) -> None:
        while True:
            await self._wait_for_some()
            while self._unwritten + CHUNK_EVENTS > UNWRITTEN_MAX:
                self._has_room = trio.Event()
                await self._has_room.wait()
            await channel.send(self._next())
            if not self._pending:
                self._all_sent.set()

    async def _wait_for_some(self) -> None:
        while not self._pending and not self._dropped:
            self._has_events = trio.Event()
            await self._has_events.wait()
        if len(self._pending) < CHUNK_EVENTS and not self._is_finishing:
            self._chunk_full = trio.Event()
            with trio.move_on_after(DELAY_S):
                await self._chunk_full.wait()

    def _next(self) -> ActivityBatch:
        """Return the next chunk, which counts as unwritten from now on."""
        chunk = self._pending[:CHUNK_EVENTS]
        del self._pending[:CHUNK_EVENTS]
        batch = ActivityBatch(pack(chunk), self._dropped)
        self._unwritten += len(chunk)
        self._dropped_unwritten += self._dropped
        self._dropped = 0
        return batch

    async def finish(self) -> None:
        """Wait until everything is sent, or the time is over; nothing may be reported then."""
        self._is_finishing = True
        self._chunk_full.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_after_limit, nursery.cancel_scope)
            while self._pending:
                self._all_sent = trio.Event()
                await self._all_sent.wait()
            nursery.cancel_scope.cancel()

    async def _cancel_after_limit(self, scope: trio.CancelScope) -> None:
        await self._env.clock.sleep_real(FINISH_S)
        scope.cancel()


# --------------------------------------------------------------------------------------------------
# Reports the activity event of each request: its cost, and the results of quota checks.
#
# Owns how an event is built from what the request handler measured. It must never know streams, or
# how events are sent. Invariant: figures are the ones that quotas and metrics recorded, never
# separate measurements; building an event takes some microseconds, whatever the client sends.
# Kafka's ``RequestChannel`` builds the lines of its request log in the same way.


class RequestActivity(RequestObserver):
    """Reports the requests of the connections in the sample."""

    def __init__(self, sender: ActivitySender) -> None:
        self._sender = sender
        self._clients: dict[int, ActivityClient] = {}
        """The last sender of events by connection."""

    def opened(self, client: ClientConnection) -> None:
        """Have quota checks of connections in the sample recorded."""
        client.needs_checks = self._sender.samples(client.number)

    def closed(self, client: ClientConnection) -> None:
        """Forget a connection."""
        self._clients.pop(client.number, None)

    def sent(self, request: RequestCost, frame: bytes | None) -> None:
        """Report a request."""
        del frame
        if request.checks is not None:
            self._sender.report(self._event(request, request.checks))

    def failed(self, request: RequestCost) -> None:
        """Report a request whose response could not be sent."""
        self.sent(request, None)

    def _event(self, cost: RequestCost, quota_checks: QuotaChecks) -> Request:
        header, mutated = cost.header, cost.mutated
        mutations = mutation = None
        if mutated is not None:
            mutation = mutated.check
            if mutated.requested:
                mutations = mutated.requested, mutated.rejected, mutated.strict
        checks = places = None
        if quota_checks.request or quota_checks.produce or quota_checks.fetch or mutation:
            checks = _packed_checks(quota_checks, mutation)
            places = _ordinals(quota_checks, mutation)
        return (
            self._sender.time_us(cost.now),
            whole_ms(cost.now),
            self._client(cost.client, header.client_id or ""),
            int(header.api_key),
            header.api_version,
            cost.request_bytes,
            cost.response_bytes,
            cost.records,
            mutations,
            cost.exempt,
            cost.queue_ns,
            cost.network_ns,
            cost.io_ns,
            cost.total_ns,
            cost.worked_ns,
            cost.later_time,
            checks,
            places,
            quota_checks.throttle_ms,
            cost.error,
        )

    def _client(self, client: ClientConnection, client_id: str) -> ActivityClient:
        """Return the sender of a request; reused for consecutive requests, to pack faster."""
        caller, known = client.caller, self._clients.get(client.number)
        user = caller.principal.name
        if known is not None and known[4] == client_id and known[3] == user:
            return known
        names = user[:NAME_CHARACTERS_MAX], client_id[:NAME_CHARACTERS_MAX]
        if known is None or known[3:] != names:
            known = caller.listener, client.number, client_ip(caller.client_host), *names
            self._clients[client.number] = known
        return known


def _packed_checks(
    quota_checks: QuotaChecks, mutation: QuotaCheck | None
) -> tuple[Check | None, Check | None, Check | None, Check | None]:
    produce, fetch, request = quota_checks.produce, quota_checks.fetch, quota_checks.request
    return (
        None if produce is None else _packed_check(produce),
        None if fetch is None else _packed_check(fetch),
        None if request is None else _packed_check(request),
        None if mutation is None else _packed_check(mutation),
    )


def _ordinals(quota_checks: QuotaChecks, mutation: QuotaCheck | None) -> Ordinals:
    first, time = quota_checks.produce or quota_checks.fetch or mutation, quota_checks.request
    if first is None:
        assert time is not None  # One of them exists.
        return time.ordinal, None, None
    separate = None if time is None or time.ordinal == first.ordinal else time.ordinal
    return first.ordinal, separate, quota_checks.taken_back


def _packed_check(check: QuotaCheck) -> Check:
    _, (user, client_id), rate, bound, throttle_ms, now_ms, _ = check
    user, client_id = user[: 3 * NAME_CHARACTERS_MAX], client_id[:NAME_CHARACTERS_MAX]
    return user, client_id, rate, None if bound is None else bound.value, throttle_ms, now_ms
