"""Carries out fault rules on connections, in a broker and in a proxy.

Owns the waits, disconnects and silences that rules ask for. It must never decide which rules fire,
know what an error looks like, or how requests are executed: the caller passes that in. Invariant:
what a rule does to a request is the same wherever the request is executed; a connection that a rule
closes raises ``InterceptorDisconnect``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Protocol

import trio

from minibroker.broker.apis.base import CloseConnection
from minibroker.broker.log.log import FileSlice
from minibroker.broker.network.interception import InterceptorDisconnect
from minibroker.lab.faults.actions import Disconnect, Refuse, Reorder, Slow, ThrottleResponse
from minibroker.lab.faults.course import NO_EFFECT, FaultCourse
from minibroker.lab.faults.fault_rule import ActiveRule, FaultHold
from minibroker.lab.faults.matching import (
    Candidate,
    ConnectionAttributes,
    Matcher,
    RequestMatches,
    counted_apart,
    matches_connection,
)
from minibroker.lab.faults.places import AFTER, BEFORE, ENTITY_FIELDS, MIDDLE, WAITING
from minibroker.lab.faults.rulebook import Firing, chances
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.wire import RequestHeader

PIECES_PER_S: Final = 20
"""Pieces of a slow response, unless its rate is lower."""


class FaultedConnection(Protocol):
    """A client's connection, as rules act on it."""

    def attributes(self) -> ConnectionAttributes:
        """What rules can select about it."""

    def note_fired(self, active: ActiveRule, header: RequestHeader | None) -> None:
        """Record that a rule fired: for a request with this header, or for the connection."""

    async def send(self, data: bytes) -> None:
        """Send bytes to the client."""

    def reset_on_close(self) -> None:
        """Let its close send a TCP reset."""

    def close_for(self, rule_id: str) -> None:
        """Close it for a rule, whatever it does now."""

    async def discard_requests(self) -> None:
        """Read and drop requests until the client disconnects."""

    async def discard_bytes(self) -> None:
        """Read and drop bytes until the client disconnects."""


class FaultDecisions(Protocol):
    """Whatever counts matches, and decides which rules fire."""

    async def decide(self, candidates: Sequence[Candidate]) -> Sequence[Firing]:
        """The rules that fire of those that match."""

    async def hold(self, rule_id: str, releases: int, what: FaultHold) -> None:
        """Return when a rule has been released more often than that, or is removed.

        ``what`` is held until then, in a process that this knows.
        """

    async def act(self, rule_id: str) -> None:
        """Carry out a rule that acts on the broker, or on the request that this one overtakes."""


class FaultExecutor:
    """The fault rules that apply to a set of connections."""

    def __init__(self, decisions: FaultDecisions, *, delays_throttled: bool = False) -> None:
        """``delays_throttled`` says that throttled responses are late, as before Kafka 2.0."""
        self._decisions = decisions
        self._delays_throttled = delays_throttled
        self.matcher = Matcher()

    def change_rules(
        self, added: Iterable[ActiveRule], removed: Iterable[str] = (), *, replaces: bool = False
    ) -> None:
        """Add and remove rules, or replace all."""
        if replaces:
            self.matcher = Matcher()
        for rule_id in removed:
            self.matcher.remove(rule_id)
        for active in added:
            self.matcher.add(active)

    # Requests ---------------------------------------------------------------------------------

    def match(
        self,
        attributes: ConnectionAttributes,
        header: RequestHeader,
        request: Any,
        topic_of: Callable[[Any], str | None],
    ) -> RequestMatches | None:
        """The rules that match a request; None if there are none.

        ``topic_of`` returns the name of a topic id.
        """
        if (
            header.api_key == ApiKey.FETCH
            and self.matcher.forbids_fetch_sessions
            and request.session_epoch > 0
        ):
            return None  # Its session is refused, and the client starts again with a full fetch.
        return self.matcher.match_request(attributes, header, request, topic_of)

    async def execute(
        self,
        connection: FaultedConnection,
        header: RequestHeader,
        request: Any,
        matches: RequestMatches | None,
        run: Callable[[], Awaitable[Any]],
    ) -> tuple[Any, RequestFaults | None]:
        """Return the response to a request, and what rules do when it is sent.

        ``run`` executes the request.

        Raises ``InterceptorDisconnect``, or ``CloseConnection`` for an error that has no response.
        """
        if matches is None:
            return await run(), None
        course = FaultCourse(header, request, matches)
        course.begin(await self._decide(course.candidates()))
        note_fired = partial(connection.note_fired, header=header)
        for active in course.fired_rules():
            note_fired(active)
        faults = RequestFaults(
            connection, course, self._decisions, delays_throttled=self._delays_throttled
        )
        try:
            response = await self._follow(course, faults, request, run, note_fired)
        except BaseException:
            await faults.end()
            raise
        if response is None:
            await faults.end()
        return response, faults

    async def _follow(
        self,
        course: FaultCourse,
        faults: RequestFaults,
        request: Any,
        run: Callable[[], Awaitable[Any]],
        note_fired: Callable[[ActiveRule], object],
    ) -> Any:
        """Take a request through its course, up to its response."""
        await faults.stop_at(BEFORE)
        response = None
        if course.prepare(request):
            response = await self._run(course, faults, request, run, note_fired)
        response = course.respond(response)
        for match in course.late_matches():
            changed = course.effect(match, response, _load)
            if changed is NO_EFFECT:
                continue
            for fired in await self._decide([course.late_candidate(match)]):
                course.fire_late(match, fired, changed)
                note_fired(match.active)
                response = changed
        if course.has_error and not course.has_response:
            raise CloseConnection("a fault rule put an error into a request with acks=0")
        await faults.stop_at(AFTER)
        return response

    async def _run(
        self,
        course: FaultCourse,
        faults: RequestFaults,
        request: Any,
        run: Callable[[], Awaitable[Any]],
        note_fired: Callable[[ActiveRule], object],
    ) -> Any:
        """Execute a request; one that would wait for records is held before it does."""
        if not course.is_about_waits:
            return await run()
        wait_ms, request.max_wait_ms = request.max_wait_ms, 0
        response = await run()
        request.max_wait_ms = wait_ms
        candidates = course.wait_candidates(request, response)
        if not candidates:
            return response
        known = course.fired_rules()
        course.fire(await self._decide(candidates))
        for active in course.fired_rules():
            if active not in known:
                note_fired(active)
        await faults.stop_at(WAITING)
        return await run()

    async def _decide(self, candidates: Sequence[Candidate]) -> Sequence[Firing]:
        return await self._decisions.decide(candidates) if candidates else ()

    # Connections ------------------------------------------------------------------------------

    async def meet(self, connection: FaultedConnection) -> None:
        """Apply the rules to a new connection. Raises ``InterceptorDisconnect``."""
        attributes = connection.attributes()
        matching = self.matcher.match_new_connection(attributes)
        for active in await self._fired(matching, attributes):
            connection.note_fired(active, None)
            if isinstance(active.rule.action, Refuse):
                connection.reset_on_close()
                raise InterceptorDisconnect(f"rule {active.id}")
            await connection.discard_bytes()
            raise InterceptorDisconnect(f"rule {active.id} left the connection silent")

    async def close_matching(
        self, active: ActiveRule, connections: Iterable[FaultedConnection]
    ) -> None:
        """Close the connections that match a new rule, which is one to close them."""
        for connection in list(connections):
            attributes = connection.attributes()
            if matches_connection(active.rule, attributes) and await self._fired(
                [active], attributes
            ):
                connection.note_fired(active, None)
                connection.close_for(active.id)

    async def _fired(
        self, matching: Sequence[ActiveRule], attributes: ConnectionAttributes
    ) -> list[ActiveRule]:
        decided = await self._decide(
            [
                Candidate(each.id, None, counted=counted_apart(each.rule, {}, attributes))
                for each in matching
            ]
        )
        fired = {each.rule_id for each in decided}
        return [active for active in matching if active.id in fired]


class RequestFaults:
    """The rules that fired for one request, where they wait, send and disconnect."""

    def __init__(
        self,
        connection: FaultedConnection,
        course: FaultCourse,
        decisions: FaultDecisions,
        *,
        delays_throttled: bool,
    ) -> None:
        self.connection = connection
        self.course = course
        self.decisions = decisions
        self.delays_throttled = delays_throttled
        self.slept_ms = 0.0
        """How long after the rules have fired their sleeps end."""

    @property
    def sets_throttle_time(self) -> bool:
        """Whether rules have set the throttle time of the response."""
        return self.course.sets_throttle_time

    @property
    def changes_response(self) -> bool:
        """Whether rules have changed more of the response than its throttle time."""
        return self.course.changes_response

    async def stop_at(self, place: str) -> None:
        """Delay, hold, disconnect or fall silent at a place. Raises ``InterceptorDisconnect``."""
        for active in self.course.fired_rules():
            if active.place == place:
                await active.rule.action.stop(_StoppedRequest(self, active))

    async def end(self) -> None:
        """Let the requests go on that this one has overtaken."""
        for active, _ in self.course.rules(Reorder):
            if self.course.fired[active.id].overtakes:
                with trio.CancelScope(shield=True):
                    await self.decisions.act(active.id)

    def damaged(self, frame: bytes) -> bytes:
        """The response as ``send`` sends it."""
        return self.course.damage(frame)

    async def send(self, frame: bytes) -> int:
        """Send the response with its length; return the number of bytes.

        Raises ``InterceptorDisconnect``.
        """
        try:
            return await self._send(frame)
        finally:
            await self.end()

    async def _send(self, frame: bytes) -> int:
        frame = self.course.damage(frame)
        for active, action in self.course.rules(Disconnect, MIDDLE):
            end = len(frame) // 2 if action.bytes is None else action.bytes
            await self.connection.send(frame[:end])
            await action.stop(_StoppedRequest(self, active))
        await self._send_slowly(frame)
        return len(frame)

    async def _send_slowly(self, frame: bytes) -> None:
        """Send the response, at the lowest rate of the rules if there are any."""
        rates = {active.id: action.bytes_per_s for active, action in self.course.rules(Slow)}
        sent = 0
        if rates:
            rule_id, rate = min(rates.items(), key=lambda each: each[1])
            since = self.course.fired[rule_id].now
            piece = max(rate // PIECES_PER_S, 1)
            while len(frame) - sent > piece:
                await trio.sleep_until(since + (sent + piece) / rate)
                await self.connection.send(frame[sent : sent + piece])
                sent += piece
            await trio.sleep_until(since + len(frame) / rate)
        await self.connection.send(frame[sent:])

    async def mute(self) -> None:
        """Wait for the throttle times that rules have set and that mute the connection."""
        if self.delays_throttled:
            return
        for active, action in self.course.rules(ThrottleResponse):
            if action.mutes:
                await _StoppedRequest(self, active).sleep(action.throttle_ms)


class _StoppedRequest:
    """A request at the place of one rule that fired. Implements ``actions.StoppedRequest``."""

    def __init__(self, faults: RequestFaults, active: ActiveRule) -> None:
        self.delays_throttled = faults.delays_throttled
        self._faults = faults
        self._active = active
        self._fired = faults.course.fired[active.id]

    @property
    def chances(self) -> tuple[float, float]:
        return chances(self._active.rule.seed or 0, self._fired.match)

    async def sleep(self, duration_ms: float, *, adds: bool = False) -> None:
        ends_ms = duration_ms + (self._faults.slept_ms if adds else 0)
        self._faults.slept_ms = max(self._faults.slept_ms, ends_ms)
        await trio.sleep_until(self._fired.now + ends_ms / 1000)

    async def hold(self) -> None:
        if not self._fired.overtakes:
            what = self._describe()
            await self._faults.decisions.hold(self._active.id, self._fired.releases, what)

    def _describe(self) -> FaultHold:
        """The request and an entity of it."""
        attributes = self._faults.connection.attributes()
        course = self._faults.course
        keys = course.keys_of(self._active.id)
        entity = {
            name: keys[key]
            for name, key in ENTITY_FIELDS.items()
            if name in FaultHold._fields and keys.get(key) is not None
        }
        request = FaultHold("", course.api.name, attributes.client_id, attributes.number)
        return request._replace(**entity)

    async def act(self) -> None:
        await self._faults.decisions.act(self._active.id)

    def disconnect(self, *, resets: bool) -> None:
        if resets:
            self._faults.connection.reset_on_close()
        raise InterceptorDisconnect(f"rule {self._active.id}")

    async def fall_silent(self) -> None:
        await self._faults.connection.discard_requests()
        raise InterceptorDisconnect(f"rule {self._active.id} left the connection silent")


def _load(records: Any) -> bytes:
    return records.load() if isinstance(records, FileSlice) else bytes(records)
