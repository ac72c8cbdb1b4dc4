"""Attaches the control API, the fault rules and the journal to the controller role.

Owns what starts with the controller and which requests of roles go to the laboratory. It must never
know an operation. Invariant: a broker without requests imports nothing for them, and one without
fault rules and journal nothing for these. Kafka has no equivalent.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from minibroker.broker.log.data_directory import FAULT_RULES_FILE
from minibroker.broker.process.environment import FIRST_INCARNATION
from minibroker.broker.settings import CONTROL_TOKEN, JOURNAL_ENABLE
from minibroker.lab.control.broker import ControlledBroker
from minibroker.lab.control.history import LAG_SAMPLE_S, USAGE_SAMPLE_S, committed_offsets
from minibroker.lab.control.serve import serve
from minibroker.lab.observers.messages import FaultAct, FaultHeld, FaultMatched

if TYPE_CHECKING:
    import trio

    from minibroker.broker.apis.base import ControllerScope
    from minibroker.broker.controller.metadata_publisher import MetadataPublisher
    from minibroker.broker.process.environment import Environment
    from minibroker.lab.control.operation import ApiOperation
    from minibroker.lab.faults.rulebook import Firing


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
        if broker.scope.quotas.enabled:
            # Imported with the first quota or offset: most brokers in tests have none.
            from minibroker.lab.control.quotas import UsageHistory

            broker.state(UsageHistory).sample()
        if ticks % (LAG_SAMPLE_S // USAGE_SAMPLE_S) == 0:
            offsets = await committed_offsets(broker)
            if offsets:
                from minibroker.lab.control.lag import LagHistory

                await broker.state(LagHistory).sample(offsets)


def _operations() -> Sequence[ApiOperation]:
    # Imported with the first request: most brokers in tests get none.
    from minibroker.lab.control.operations import OPERATIONS

    return OPERATIONS
