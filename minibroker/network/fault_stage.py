"""Carries out fault rules on the connections of a processor.

Owns the waits, disconnects and silences that rules ask for, and the questions to the controller
which of the matching rules fire. It must never decide that, or know what an error looks like.
Invariant: it exists only while rules are set, so a broker without rules does nothing for them; a
connection that a rule closes is counted with a reason of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import trio

from minibroker.apis.base import CloseConnection
from minibroker.faults.actions import AFTER, BEFORE, BROKER_ACTIONS, MIDDLE
from minibroker.faults.course import FaultCourse
from minibroker.faults.matching import Candidate, ConnectionAttributes, Matcher, matches_connection
from minibroker.faults.rulebook import Firing
from minibroker.faults.rules import ActiveRule
from minibroker.network.client_connection import ClientConnection, FaultDisconnect
from minibroker.observability.definitions import CloseReason
from minibroker.process.messages import FaultAct, FaultHeld, FaultMatched, FaultRules
from minibroker.runtime.arena import Block
from minibroker.runtime.rpc import Link, PeerFailed, PeerLost
from minibroker.storage.slices import FileSlice
from protocol.registry import ApiKey

if TYPE_CHECKING:
    from minibroker.cluster.image import Image
    from protocol.headers import RequestHeader

_API_KEY_BYTES: Final = 2
_SCRATCH_BYTES: Final = 4096

PIECES_PER_S: Final = 20
"""Pieces of a slow response, unless its rate is lower."""


class FaultStage:
    """The fault rules of one processor."""

    def __init__(self, link: Link) -> None:
        """``link`` leads to the controller, which decides which rules fire."""
        self._link = link
        self._matcher = Matcher(())

    @property
    def forbids_fetch_sessions(self) -> bool:
        """Whether fetches must name all their partitions."""
        return self._matcher.forbids_fetch_sessions

    @property
    def is_empty(self) -> bool:
        """Whether no rule is set."""
        return not self._matcher.rules

    def set_rules(self, rules: FaultRules) -> None:
        """Replace all rules."""
        self._matcher = Matcher(rules.rules)

    def concerns(self, body: bytes | Block) -> bool:
        """Whether a rule may match a request, by its API."""
        data = body if isinstance(body, bytes) else body.view
        return self._matcher.concerns(int.from_bytes(data[:_API_KEY_BYTES], "big", signed=True))

    # Requests ---------------------------------------------------------------------------------

    async def execute(
        self,
        client: ClientConnection,
        header: RequestHeader,
        request: Any,
        image: Image,
        run: Callable[[], Awaitable[Any]],
    ) -> tuple[Any, RequestFaults | None]:
        """Return the response to a request, and what rules do when it is sent.

        ``run`` executes the request.

        Raises ``FaultDisconnect``, or ``CloseConnection`` for an error that has no response.
        """
        course = await self._start(client, header, request, image)
        if course is None:
            return await run(), None
        faults = RequestFaults(client, course, self._link)
        await faults.stop_at(BEFORE)
        response = await run() if course.prepare(request) else None
        response = course.finish(response)
        if candidates := course.record_candidates(response):
            course.damage_records(response, await self._decide(candidates), _load)
        if header.api_key == ApiKey.PRODUCE and request.acks == 0:
            if course.has_error:
                raise CloseConnection("a fault rule put an error into a request with acks=0")
            response = None
        await faults.stop_at(AFTER)
        return response, faults

    async def _start(
        self, client: ClientConnection, header: RequestHeader, request: Any, image: Image
    ) -> FaultCourse | None:
        if (
            header.api_key == ApiKey.FETCH
            and self.forbids_fetch_sessions
            and request.session_epoch > 0
        ):
            return None  # Its session is refused, and the client starts again with a full fetch.
        matches = self._matcher.match_request(
            _facts(client), header, request, image.topic_names.get
        )
        if matches is None:
            return None
        return FaultCourse(header, matches, await self._decide(matches.candidates))

    async def _decide(self, candidates: Sequence[Candidate]) -> Sequence[Firing]:
        if not candidates:
            return ()
        try:
            fired: Sequence[Firing] = await self._link.request(FaultMatched(tuple(candidates)))
        except (PeerLost, PeerFailed):
            return ()  # The rules are lost with the controller.
        return fired

    # Connections ------------------------------------------------------------------------------

    async def meet(self, client: ClientConnection) -> None:
        """Apply the rules to a new connection. Raises ``FaultDisconnect``."""
        matching = self._matcher.match_new_connection(_facts(client))
        for active in await self._fired(matching):
            if active.rule.action == "refuse":
                client.stream.abort()
                raise FaultDisconnect(f"rule {active.id}")
            await _discard_bytes(client)
            raise FaultDisconnect(f"rule {active.id} left the connection silent")

    async def close_matching(self, added: str, clients: Iterable[ClientConnection]) -> None:
        """Close the connections that a new rule is about, if it is one to close them."""
        rules = [each for each in self._matcher.rules if each.id == added]
        for active in rules:
            if active.rule.action != "close":
                continue
            for client in list(clients):
                if matches_connection(active.rule, _facts(client)) and await self._fired([active]):
                    client.close(CloseReason.FAULT_RULE, f"rule {active.id}")

    async def _fired(self, matching: Sequence[ActiveRule]) -> list[ActiveRule]:
        if not matching:
            return []
        decided = await self._decide([Candidate(active.id, None) for active in matching])
        fired = {each.rule_id for each in decided}
        return [active for active in matching if active.id in fired]


class RequestFaults:
    """The rules that fired for one request, where they wait, send and disconnect."""

    def __init__(self, client: ClientConnection, course: FaultCourse, link: Link) -> None:
        self._client = client
        self._course = course
        self._link = link

    async def stop_at(self, place: str) -> None:
        """Delay, hold, disconnect or fall silent at a place. Raises ``FaultDisconnect``."""
        for active in self._course.rules(*_STOPS, place=place):
            rule = active.rule
            if rule.action == "delay":
                await self._sleep(active, rule.delay_ms)
            elif rule.action == "hold":
                await self._hold(active.id)
            elif rule.action == "disconnect":
                self._disconnect(active)
            elif rule.action in BROKER_ACTIONS:
                await self._ask(FaultAct(active.id))
            else:
                await _discard_requests(self._client)
                raise FaultDisconnect(f"rule {active.id} left the connection silent")

    async def _hold(self, rule_id: str) -> None:
        await self._ask(FaultHeld(rule_id, self._course.fired[rule_id].releases))

    async def _ask(self, request: FaultHeld | FaultAct) -> None:
        try:
            await self._link.request(request, may_wait=True)
        except (PeerLost, PeerFailed):
            return  # The rules are lost with the controller.

    def _disconnect(self, active: ActiveRule) -> None:
        if active.rule.reset:
            self._client.stream.abort()
        raise FaultDisconnect(f"rule {active.id}")

    async def send(self, frame: bytes) -> int:
        """Send the response with its length; return the number of bytes.

        Raises ``FaultDisconnect``.
        """
        frame = self._course.damage(frame)
        for active in self._course.rules("disconnect", place=MIDDLE):
            end = active.rule.bytes
            await self._client.stream.send_all(frame[: len(frame) // 2 if end is None else end])
            self._disconnect(active)
        await self._send_slowly(frame)
        return len(frame)

    async def _send_slowly(self, frame: bytes) -> None:
        """Send the response, at the lowest rate of the rules if there are any."""
        slow = min(
            self._course.rules("slow"), key=lambda each: each.rule.bytes_per_s or 0, default=None
        )
        sent = 0
        if slow is not None:
            rate, since = slow.rule.bytes_per_s or 1, self._course.fired[slow.id].now
            piece = max(rate // PIECES_PER_S, 1)
            while len(frame) - sent > piece:
                await trio.sleep_until(since + (sent + piece) / rate)
                await self._client.stream.send_all(frame[sent : sent + piece])
                sent += piece
            await trio.sleep_until(since + len(frame) / rate)
        await self._client.stream.send_all(frame[sent:])

    async def mute(self) -> None:
        """Wait for the throttle times that rules have set and that mute the connection."""
        for active in self._course.rules("throttle"):
            if active.rule.mute is not False:
                await self._sleep(active, active.rule.throttle_ms)

    async def _sleep(self, active: ActiveRule, duration_ms: int | None) -> None:
        """Sleep until a time after the rule has fired."""
        await trio.sleep_until(self._course.fired[active.id].now + (duration_ms or 0) / 1000)


_STOPS: Final = ("delay", "hold", "disconnect", "never_answer", *sorted(BROKER_ACTIONS))


def _facts(client: ClientConnection) -> ConnectionAttributes:
    caller = client.caller
    return ConnectionAttributes(
        client.number,
        caller.listener,
        caller.client_host,
        str(caller.principal),
        client.client_id,
    )


def _load(records: Any) -> bytes:
    return records.load() if isinstance(records, FileSlice) else bytes(records)


async def _discard_requests(client: ClientConnection) -> None:
    """Read and drop requests until the client disconnects."""
    reader = client.reader
    assert reader is not None
    while (body := await reader.next_body()) is not None:
        if isinstance(body, Block):
            body.release()


async def _discard_bytes(client: ClientConnection) -> None:
    """Read and drop bytes until the client disconnects."""
    scratch = memoryview(bytearray(_SCRATCH_BYTES))
    while await client.stream.receive_into(scratch):
        pass
