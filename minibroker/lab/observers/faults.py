"""The fault rules on the connections of a processor.

Owns the connections as rules act on them, and the questions to the controller which of the matching
rules fire. It must never decide that, or know what a rule does. Invariant: it is loaded with the
first rule and intercepts requests only while rules are set; a connection that a rule closes is
counted with a reason of its own.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.network.client_connection import ClientConnection
from minibroker.broker.settings.definitions import DELAY, QUOTA_THROTTLE_MODE
from minibroker.lab.faults.actions import Close, FailAppend, StallAppend
from minibroker.lab.faults.execution import FaultExecutor, RequestFaults
from minibroker.lab.faults.fault_rule import COUNTS
from minibroker.lab.faults.matching import ConnectionAttributes, EntityMatcher
from minibroker.lab.faults.register import FaultCounts
from minibroker.lab.faults.rulebook import is_in_time
from minibroker.lab.observers.hold_points import ControllerDecisions
from minibroker.lab.observers.messages import FaultRules
from minibroker.runtime.arena import Block
from minibroker.runtime.rpc import Link
from minibroker_protocol.meanings import Meaning

if TYPE_CHECKING:
    from minibroker.broker.log.segment import SegmentFiles
    from minibroker.broker.metadata.image import Image
    from minibroker.broker.process.environment import Environment
    from minibroker.lab.faults.fault_rule import ActiveRule
    from minibroker_protocol.wire import RequestHeader


_SCRATCH_BYTES: Final = 4096


class ProcessorFaults:
    """The fault rules of one processor: the interceptor of its requests while there are any."""

    def __init__(self, env: Environment, link: Link) -> None:
        """``link`` leads to the controller, which decides which rules fire."""
        self._env = env
        self._executor = FaultExecutor(
            ControllerDecisions(link, env.name),
            delays_throttled=env.settings[QUOTA_THROTTLE_MODE] == DELAY,
        )

    @property
    def forbids_fetch_sessions(self) -> bool:
        """Whether fetches must name all their partitions."""
        return self._executor.matcher.forbids_fetch_sessions

    @property
    def is_empty(self) -> bool:
        """Whether no rule is set."""
        return not self._executor.matcher.rules

    def change_rules(self, rules: FaultRules) -> None:
        """Add and remove rules, or replace all."""
        self._executor.change_rules(rules.added, rules.removed, replaces=rules.replaces)

    def concerns(self, body: bytes | Block) -> bool:
        """Whether a rule may match a request, by its API and client id."""
        return self._executor.matcher.concerns(body if isinstance(body, bytes) else body.view)

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

        Raises ``InterceptorDisconnect``, or ``CloseConnection`` for an error that has no response.
        """
        connection = FaultedClient(client, self._env)
        matches = self._executor.match(
            connection.attributes(), header, request, image.topic_names.get
        )
        return await self._executor.execute(connection, header, request, matches, run)

    async def meet(self, client: ClientConnection) -> None:
        """Apply the rules to a new connection. Raises ``InterceptorDisconnect``."""
        await self._executor.meet(FaultedClient(client, self._env))

    async def close_matching(self, rules: FaultRules, clients: Iterable[ClientConnection]) -> None:
        """Close the connections that new rules are about, if they are rules to close them."""
        for active in () if rules.replaces else rules.added:
            if isinstance(active.rule.action, Close):
                connections = [FaultedClient(client, self._env) for client in clients]
                await self._executor.close_matching(active, connections)


class FaultedClient:
    """Implements ``faults.execution.FaultedConnection`` for a connection of a processor."""

    __slots__ = ("_client", "_env")

    def __init__(self, client: ClientConnection, env: Environment) -> None:
        self._client = client
        self._env = env

    def attributes(self) -> ConnectionAttributes:
        """What rules can select about it."""
        caller = self._client.caller
        return ConnectionAttributes(
            self._client.number,
            caller.listener,
            caller.client_host,
            str(caller.principal),
            self._client.client_id,
        )

    def note_fired(self, active: ActiveRule, header: RequestHeader | None) -> None:
        """Record that a rule fired: for a request with this header, or for the connection."""
        if self._env.on_note is not None:
            from minibroker.lab.observers.request_journal import note_fault

            note_fault(self._env, self._client, header, active)

    async def send(self, data: bytes) -> None:
        await self._client.stream.send_all(data)

    def reset_on_close(self) -> None:
        """Let its close send a TCP reset."""
        self._client.stream.reset_on_close()

    def close_for(self, rule_id: str) -> None:
        """Close it for a rule, whatever it does now."""
        self._client.close(CloseReason.FAULT_RULE, f"rule {rule_id}")

    async def discard_requests(self) -> None:
        """Read and drop requests until the client disconnects."""
        reader = self._client.reader
        assert reader is not None
        while (body := await reader.next_body()) is not None:
            if isinstance(body, Block):
                body.release()

    async def discard_bytes(self) -> None:
        """Read and drop bytes until the client disconnects."""
        scratch = memoryview(bytearray(_SCRATCH_BYTES))
        while await self._client.stream.receive_into(scratch):
            pass


# -------------------------- Carries out fault rules about appends in the process that owns the logs
# Owns what such a rule does to a write: a failure, a torn batch, a crash, a wait. It must never
# know batches or clients. Invariant: a batch that a rule has torn stays in the file as after a real
# crash, and while no such rule is set nothing is matched. Trogdor's ``FilesUnreadableFault`` is the
# closest that Kafka has.


DEFAULT_ERRNO: Final = "ENOSPC"


class StorageFaults:
    """The rules about the appends of one worker."""

    def __init__(
        self, env: Environment, files: SegmentFiles, save_records: Callable[[], None]
    ) -> None:
        """``save_records`` saves what the process has recorded for the journal."""
        self._env = env
        self._files = files
        self._save_records = save_records
        self._log = EventLog(env.name)
        self._rules = EntityMatcher()
        self._counts: FaultCounts | None = None

    def change_rules(self, rules: FaultRules) -> None:
        """Add and remove rules, or replace all."""
        if rules.replaces:
            self._rules = EntityMatcher()
        for rule_id in rules.removed:
            self._rules.remove(rule_id)
        for active in rules.added:
            if active.rule.action.matches == "appends" and active.slot >= 0:
                self._rules.add(active)
        if self._counts is not None and (rules.replaces or not self._rules):
            self._counts.close()
            self._counts = None
        if self._rules and self._counts is None:
            self._counts = FaultCounts(self._env.data_dir)
        self._files.write_fault = self._meet if self._rules else None

    def fails_always(self) -> bool:
        """Whether a rule lets each append to some partition fail now."""
        now = self._env.clock.now()
        return any(
            isinstance(active.rule.action, FailAppend)
            and all(getattr(active.rule, name) is None for name in COUNTS)
            and is_in_time(active, now)
            for active in self._rules.all()
        )

    def _meet(self, fd: int, directory: str, batch: tuple[bytes, memoryview], size: int) -> None:
        """Let the rules act on a write of a batch at the end of a file of ``size`` bytes."""
        topic, _, partition = os.path.basename(directory).rpartition("-")
        keys = {Meaning.TOPIC: topic, Meaning.PARTITION: int(partition)}
        for active in self._rules.match(keys):
            assert self._counts is not None
            if self._counts.decide(active, self._env.clock.now()):
                self._carry_out(active, fd, batch, size)

    def _carry_out(
        self, active: ActiveRule, fd: int, batch: tuple[bytes, memoryview], size: int
    ) -> None:
        action = active.rule.action
        if isinstance(action, StallAppend):
            pause_s = action.pause_ms / 1000
            time.sleep(pause_s)  # noqa: TID251 - as for a disk that does not respond
            return
        assert isinstance(action, FailAppend)
        if action.bytes:
            os.pwrite(fd, b"".join(batch)[: action.bytes], size)
        if action.crash:
            self._log.warning("a fault rule kills this process in an append", rule=active.id)
            self._save_records()
            os.kill(os.getpid(), signal.SIGKILL)
        number = getattr(errno, action.errno or DEFAULT_ERRNO)
        raise OSError(number, os.strerror(number))
