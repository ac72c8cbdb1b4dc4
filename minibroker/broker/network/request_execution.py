"""Executes one request in the steps of its API, in the processes that own its parts.

Owns the general way of a request from its bytes to its response: decode, split, ask the owners,
merge. It must never know what an API does, how the response is sent, or the state of a socket.
Invariant: the memory of a request is released exactly once, and not before every owner with a
reference to it has answered or died, so no owner reads the bytes of another request. Kafka's
``KafkaApis.handle``.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import trio

from minibroker.broker.apis.api_versions import software_in, unsupported_version
from minibroker.broker.network.activity_events import count_records
from minibroker.broker.process.messages import ApiPart
from minibroker.broker.settings.persona_definitions import PERSONA
from minibroker.runtime.rpc import Link, LocalPeer, request_all
from minibroker_protocol import registry
from minibroker_protocol.compiler import locating_decoder
from minibroker_protocol.errors import UnsupportedVersion
from minibroker_protocol.headers import RequestHeader, decode_request_header
from minibroker_protocol.registry import ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from minibroker.broker.apis.base import Context, Owner, ServedApi
    from minibroker.broker.network.client_connection import ClientConnection
    from minibroker.broker.network.fault_stage import FaultStage
    from minibroker.broker.network.quota_stage import QuotaStage
    from minibroker.broker.network.request_cost import RequestCost
    from minibroker.runtime.arena import Block
    from minibroker_protocol.messages.produce import ProduceRequest


class ExecutionScope(Protocol):
    """What the executions of one processor share."""

    quota_stage: QuotaStage
    apis: Mapping[int, ServedApi]
    """The served APIs by key."""
    faults: FaultStage | None
    """The fault rules; None if none is set."""
    quick_requests: int
    """Requests in flight that never wait at their owners."""

    def context(self, client: ClientConnection, header: RequestHeader, block: Block) -> Context:
        """Return the context of a request for its API."""
        ...

    def refresh(self, ctx: Context) -> None:
        """Update image and time for the next step."""
        ...

    def should_poll(self, api: ServedApi, owner: Owner) -> bool:
        """Whether to poll for an answer instead of sleeping until it arrives."""
        ...

    def peer(self, owner: Owner) -> Link | LocalPeer:
        """Return an owner, behind a link or in this process."""
        ...


class RequestExecution:
    """Execution of one request, which holds its memory as long as it is needed."""

    def __init__(self, scope: ExecutionScope, cost: RequestCost, block: Block) -> None:
        self._scope = scope
        self._cost = cost
        self._client = cost.client
        self._block: Block | None = block

    async def run(self) -> None:
        """Decode and execute the request: sets header, context, request and response."""
        client, scope, block, cost = self._client, self._scope, self._block, self._cost
        assert block is not None
        header, at = decode_request_header(block.view)
        cost.header = header
        client.client_id = header.client_id
        client.in_flight = header.api_key
        ctx = cost.ctx = scope.context(client, header, block)
        api = _served(scope.apis, header)
        if api is None:
            cost.response = unsupported_version(ctx.served, ctx.settings[PERSONA])
            # The version of the response, which is encoded by this header (KIP-511).
            cost.header = header._replace(api_version=0)
            return
        schema = registry.schema(header.api_key)
        request, _ = locating_decoder(schema.request, header.api_version)(block.view, at)
        cost.request = request
        if client.is_sampled and header.api_key == ApiKey.PRODUCE:
            cost.records = count_records(cast("ProduceRequest", request), block.view)
        software = software_in(header, request)
        if software is not None:
            client.set_software(*software)
        if api.may_wait:
            # Only records are read in place, and the client chooses how long the request waits.
            self.free()
        execute = partial(self._execute, api, ctx, request)
        if scope.faults is None:
            cost.response = await execute()
        else:
            cost.response, cost.faults = await scope.faults.execute(
                client, header, request, ctx.image, execute
            )

    def free(self) -> None:
        """Release the request's memory if it is still held."""
        if self._block is not None:
            self._block.release()
            self._block = None

    async def _execute(self, api: ServedApi, ctx: Context, request: Any) -> Any:
        parts = api.split(ctx, request)
        replies: dict[Owner, Any] = {}
        if parts:
            # An owner with a reference to the request's bytes reads them even if the connection is
            # closed in the meantime, so the request waits for it. Such APIs never wait long.
            with trio.CancelScope(shield=not api.may_wait):
                self._client.interruptible = api.may_wait
                self._scope.quick_requests += not api.may_wait
                try:
                    await self._request_all(api, parts, replies)
                finally:
                    self._client.interruptible = True
                    self._scope.quick_requests -= not api.may_wait
            self._scope.refresh(ctx)
            while api.next_round is not None:
                further = api.next_round(ctx, request, replies)
                if further is None:
                    break
                await self._request_all(api, further.parts, replies, first_only=further.first_only)
                self._scope.refresh(ctx)
        return api.merge(ctx, request, replies)

    async def _request_all(
        self,
        api: ServedApi,
        parts: Mapping[Owner, Any],
        replies: dict[Owner, Any],
        *,
        first_only: bool = False,
    ) -> None:
        started_ns = time.perf_counter_ns()
        owners = sorted(parts)
        requests = [(self._scope.peer(owner), ApiPart(api.key, parts[owner])) for owner in owners]
        if len(requests) == 1:
            peer, part = requests[0]
            poll = self._scope.should_poll(api, owners[0])
            answers = [
                await peer.request(part, may_wait=api.may_wait, poll=poll, on_sent=self._prepare)
            ]
        else:
            answers = await request_all(
                requests,
                may_wait=api.may_wait,
                first_only=first_only,
                on_sent=self._prepare,
            )
        for owner, answer in zip(owners, answers, strict=True):
            if answer is not None:
                replies[owner] = answer.reply
                self._cost.io_ns += answer.worked_ns
        self._cost.owners_ns += time.perf_counter_ns() - started_ns

    def _prepare(self) -> None:
        if self._scope.quota_stage.active:
            self._scope.quota_stage.prepare(self._cost)


def _served(apis: Mapping[int, ServedApi], header: RequestHeader) -> ServedApi | None:
    """Return the API of a request, or None for an ApiVersions version that is too new.

    Raises ``UnsupportedVersion`` otherwise: as in Kafka, the connection is closed, because there is
    no version in which to respond.
    """
    api = apis.get(header.api_key)
    if api is None:
        raise UnsupportedVersion(f"{ApiKey(header.api_key).name} is not served")
    low, high = api.versions
    low = low if api.served_from is None else api.served_from
    if low <= header.api_version <= high:
        return api
    if api.key == ApiKey.API_VERSIONS:
        return None
    raise UnsupportedVersion(
        f"{api.key.name} version {header.api_version} is not served, {low} to {high} are"
    )
