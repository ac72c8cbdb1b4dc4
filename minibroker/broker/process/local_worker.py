"""The I/O worker that shares a process with a network processor, as the processor sees it.

Owns the direct calls from the processor to the worker, and the account of the worker's work. It
must never know what a request does. Invariant: a moment is charged to the processor or to the
worker, never to both: the work of a direct call is taken from the connection that makes it. In
Kafka both are threads, and a request is handed over in the queue of ``RequestChannel``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from minibroker.broker.process.messages import ApiPart, ApiReply
from minibroker.runtime.worktime import Account, WorkTime

if TYPE_CHECKING:
    from minibroker.broker.apis.base import WorkerScope

Execute = Callable[[ApiPart], "ApiReply | Awaitable[ApiReply]"]


class LocalWorker:
    """A worker in this process. Created before both roles; the worker calls ``serve``."""

    def __init__(self, work_time: WorkTime) -> None:
        self.work_time = work_time
        """The work of both roles."""
        self.account = Account()
        """Work of the worker's tasks and of direct calls."""
        self._serving = trio.Event()
        self._execute: Execute
        self.scope: WorkerScope
        """What executing APIs may use; set once the worker serves."""

    def serve(self, scope: WorkerScope, execute: Execute) -> None:
        """Let the processor call the worker: its logs and groups are loaded."""
        self.scope = scope
        self._execute = execute
        self._serving.set()

    async def wait_serving(self) -> None:
        """Wait until the worker serves."""
        await self._serving.wait()

    def execute(self, part: ApiPart) -> ApiReply | Awaitable[ApiReply]:
        """Execute a part as if it had been sent to the worker."""
        reply = self._execute(part)
        if isinstance(reply, ApiReply):
            self.work_time.move(self.account, reply.worked_ns)
            return reply
        return self._finish(reply)

    async def _finish(self, reply: Awaitable[ApiReply]) -> ApiReply:
        result = await reply  # Charges an account of its own.
        self.account.worked_ns += result.worked_ns
        return result

    def processor_busy_ns(self) -> int:
        """Return the work of this process without the worker's."""
        return self.work_time.busy_ns() - self.account.worked_ns

    def worker_busy_ns(self) -> int:
        return self.account.worked_ns
