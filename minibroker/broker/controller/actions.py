"""Broker actions of the control API: asks the workers that own what is to be changed.

Owns the choice of these workers, and the errors that the API answers with. It must never know how a
group, a transaction or a log changes. Invariant: an action that is answered without an error was
carried out by every worker that it concerns. Kafka has no equivalent.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from minibroker.broker.controller.processes import HandOver, ProcessSignals
from minibroker.broker.metadata.placement import group_owner, transaction_owner
from minibroker.broker.process.environment import WORKER, Environment, role_name
from minibroker.broker.process.messages import ActionReply, ActionRequest
from minibroker.broker.process.notes import note_state
from minibroker.broker.settings import (
    OFFSETS_TOPIC_NUM_PARTITIONS,
    TRANSACTION_STATE_LOG_NUM_PARTITIONS,
)
from minibroker.lab.control.action_shapes import ActionResult, BrokerAction, check_action
from minibroker.lab.control.backend import BackendError, Conflict, NotFound, Unavailable
from minibroker_protocol.errors import ErrorCode

if TYPE_CHECKING:
    from minibroker.broker.controller.metadata_publisher import MetadataPublisher
    from minibroker.broker.metadata.image import Image

_NOT_FOUND: Final = frozenset({
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
})  # fmt: skip


class BrokerActions:
    """The actions of one broker."""

    def __init__(
        self,
        env: Environment,
        image: Image,
        publisher: MetadataPublisher,
        hand_over: HandOver,
    ) -> None:
        """``hand_over`` is called as ``ProcessSignals`` calls it."""
        self._env = env
        self._image = image
        self._publisher = publisher
        self._processes = ProcessSignals(
            env.clock, env.statuses, partial(note_state, env, "process"), hand_over
        )

    async def act(self, action: BrokerAction) -> ActionResult:
        """Carry out an action; returns when it is done.

        Raises ``InvalidJson``, ``NotFound``, ``Conflict`` or ``Unavailable``.
        """
        check_action(action)
        if action.process is not None:
            return await self._act_on_process(action.action, action.process, action.pause_ms or 0)
        names = self._workers(action)
        answers = await self._publisher.request_all(ActionRequest(action), names)
        if len(answers) < len(names):
            raise Unavailable("BROKER_NOT_AVAILABLE", "an I/O worker is restarting")
        replies: list[ActionReply] = list(answers.values())
        for reply in replies:
            if reply.error is not ErrorCode.NONE:
                raise _error(reply)
        return ActionResult(sum(reply.affected for reply in replies))

    async def _act_on_process(self, action: str, process: str, pause_ms: int) -> ActionResult:
        self._processes.check(action, process)
        if action == "kill":
            await self._processes.kill(process, "an action of the control API")
        else:
            await self._processes.pause(process, pause_ms)
        return ActionResult(1)

    def _workers(self, action: BrokerAction) -> list[str]:
        """The workers that own the group, transaction or topic."""
        settings, workers = self._env.settings, self._env.workers
        if action.group is not None:
            partitions = settings[OFFSETS_TOPIC_NUM_PARTITIONS]
            return [role_name(WORKER, group_owner(action.group, partitions, workers))]
        if action.transactional_id is not None:
            partitions = settings[TRANSACTION_STATE_LOG_NUM_PARTITIONS]
            owner = transaction_owner(action.transactional_id, partitions, workers)
            return [role_name(WORKER, owner)]
        topic = self._image.topics.get(action.topic or "")
        if topic is None or (action.partition or 0) >= len(topic.partitions):
            text = f"there is no partition {action.partition or 0} of a topic {action.topic!r}"
            raise NotFound(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name, text)
        return [role_name(WORKER, index) for index in range(workers)]


def _error(reply: ActionReply) -> BackendError:
    kind = NotFound if reply.error in _NOT_FOUND else Conflict
    return kind(reply.error.name, reply.text)
