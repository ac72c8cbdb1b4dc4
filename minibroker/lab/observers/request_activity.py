"""Reports the activity event of each request: its cost, and the results of quota checks.

Owns how an event is built from what the request handler measured. It must never know streams, or
how events are sent. Invariant: figures are the ones that quotas and metrics recorded, never
separate measurements; building an event takes some microseconds, whatever the client sends. Kafka's
``RequestChannel`` builds the lines of its request log likewise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minibroker.broker.connections.address import client_ip
from minibroker.broker.network.request_observer import RequestObserver
from minibroker.lab.activity.events import ActivityClient, Check, Ordinals, Request
from minibroker.lab.observers.activity_sender import NAME_CHARACTERS_MAX, ActivitySender
from minibroker.runtime.clock import whole_ms

if TYPE_CHECKING:
    from minibroker.broker.network.client_connection import ClientConnection
    from minibroker.broker.network.quota_stage import QuotaChecks, RequestCost
    from minibroker.broker.quotas.manager import QuotaCheck


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
