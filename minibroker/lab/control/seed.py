"""Seeds in the control API: topics with records, settings, users and quotas, created in one call.

Owns the order in which they are created. It must never know files, which ``minibroker.seed_file``
reads. Invariant: a seed can be applied again: what exists stays as it is, and a topic that exists
gets no records. Kafka has no equivalent.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from minibroker.broker.metadata.acls import CredentialChange
from minibroker.broker.metadata.configs import Alteration, ConfigOperation, Op
from minibroker.broker.metadata.image import BROKER
from minibroker.broker.metadata.quotas import CLIENT_TYPE, IP_TYPE, USER_TYPE, QuotaChange
from minibroker.broker.process.messages import LogsRequest
from minibroker.broker.security.scram import (
    ITERATIONS_MIN,
    MECHANISM_NUMBERS,
    SALT_BYTES,
    credential,
    salted,
)
from minibroker.lab.control.operation import POLL_S, UNAVAILABLE, Operations
from minibroker.lab.control.records import RECORDS_MAX, NewRecord, NewRecords, produce_records
from minibroker.lab.control.topics import (
    CONFIGS_MAX,
    PARTITIONS_MAX,
    TOPIC_NAME_MAX,
    TopicCreation,
    create_topic,
)
from minibroker.lab.errors import ApiError
from minibroker.lab.schema import Doc, InvalidJson, Length, Range, parse

if TYPE_CHECKING:
    from minibroker.broker.metadata.image import ChangeRejected
    from minibroker.lab.control.broker import ControlledBroker

SEED_BODY_MAX_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of a seed."""

ENTRIES_MAX: Final = 1000
"""Maximum number of topics, users or quotas of a seed."""

SEED_RECORDS_MAX: Final = 100_000
"""Maximum number of records of a topic in a seed."""

DEFAULT_ENTITY: Final = "<default>"

Mechanism = Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]


class SeedTopic(NamedTuple):
    """A topic to create, with its first records."""

    name: Annotated[str, Length(1, TOPIC_NAME_MAX), Doc("Letters, digits, `.`, `_` and `-`.")]
    partitions: Annotated[int | None, Range(1, PARTITIONS_MAX)] = None
    configs: Annotated[Mapping[str, str], Length(0, CONFIGS_MAX)] = {}
    records: Annotated[tuple[NewRecord, ...], Length(0, SEED_RECORDS_MAX)] = ()


class SeedUser(NamedTuple):
    """A user of SCRAM to create or change."""

    name: Annotated[str, Length(1, 255)]
    password: Annotated[str, Length(1, 1000)]
    mechanisms: Annotated[tuple[Mechanism, ...], Doc("By default both.")] = (
        "SCRAM-SHA-256",
        "SCRAM-SHA-512",
    )


class SeedQuota(NamedTuple):
    """Quotas of an entity; the name `<default>` is all others."""

    limits: Annotated[Mapping[str, float], Doc("By Kafka's keys, e.g. `producer_byte_rate`.")]
    user: str | None = None
    client_id: str | None = None
    ip: str | None = None


class Seed(NamedTuple):
    """The first content of a broker."""

    topics: Annotated[tuple[SeedTopic, ...], Length(0, ENTRIES_MAX)] = ()
    settings: Annotated[
        Mapping[str, str], Length(0, CONFIGS_MAX), Doc("Dynamic settings, of all brokers.")
    ] = {}
    users: Annotated[tuple[SeedUser, ...], Length(0, ENTRIES_MAX)] = ()
    quotas: Annotated[tuple[SeedQuota, ...], Length(0, ENTRIES_MAX)] = ()


class SeedResult(NamedTuple):
    """What a seed has created."""

    topics: Annotated[tuple[str, ...], Doc("Topics that were created.")]
    existing: Annotated[tuple[str, ...], Doc("Topics that existed and were left as they are.")]
    records: Annotated[int, Doc("Number of records that were produced.")]


SEED_OPERATIONS: Final = Operations()


@SEED_OPERATIONS.add(
    "POST",
    "/v1/seed",
    errors={**UNAVAILABLE},
    example={
        "topics": [{"name": "orders", "partitions": 3, "records": [{"value": "first"}]}],
        "quotas": [{"user": "<default>", "limits": {"producer_byte_rate": 1048576}}],
    },
    body_max_bytes=SEED_BODY_MAX_BYTES,
)
async def apply_seed(broker: ControlledBroker, seed: Seed) -> SeedResult:
    """Create topics with records, users, quotas and dynamic settings; existing topics stay."""
    await _alter_settings(broker, seed.settings)
    await _alter_users(broker, seed.users)
    await _alter_quotas(broker, seed.quotas)
    existing = [topic.name for topic in seed.topics if topic.name in broker.image.topics]
    count = 0
    for topic in seed.topics:
        if topic.name in existing:
            continue
        new = TopicCreation(topic.name, topic.partitions, topic.configs)
        with _named(f"topic {topic.name}"):
            await create_topic(broker, new)
            for start in range(0, len(topic.records), RECORDS_MAX):
                part = topic.records[start : start + RECORDS_MAX]
                await produce_records(broker, topic.name, NewRecords(part))
        count += len(topic.records)
    created = tuple(topic.name for topic in seed.topics if topic.name not in existing)
    return SeedResult(created, tuple(existing), count)


class _named:  # noqa: N801 - used as a function
    """Add what is seeded to the text of an error."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: object, _traceback: object) -> None:
        if isinstance(error, ApiError):
            error.message = f"{self._what}: {error.message}"
        elif isinstance(error, InvalidJson):
            faults = [fault._replace(path=f"{self._what}: {fault.path}") for fault in error.faults]
            raise InvalidJson(faults) from None


async def _alter_settings(broker: ControlledBroker, settings: Mapping[str, str]) -> None:
    steps = tuple(ConfigOperation(name, Op.SET, value) for name, value in settings.items())
    if steps:
        outcome = await broker.scope.cluster.alter_configs([Alteration(BROKER, "", steps)])
        await broker.scope.publish(outcome.updates)
        hint = "; settings that are not dynamic are given when the broker starts"
        _check("settings", outcome.rejections, hint)


async def _alter_users(broker: ControlledBroker, users: Sequence[SeedUser]) -> None:
    changes = []
    for user in users:
        for number, mechanism in MECHANISM_NUMBERS.items():
            if mechanism in user.mechanisms:
                salt = secrets.token_bytes(SALT_BYTES)
                # The password is salted in a thread: it takes milliseconds on purpose.
                salting = partial(salted, mechanism, user.password, salt, ITERATIONS_MIN)
                secret = await broker.scope.run_in_thread(salting)
                made = credential(mechanism, secret, salt, ITERATIONS_MIN)
                changes.append(CredentialChange(user.name, number, made))
    if changes:
        rejections, updates = await broker.scope.cluster.alter_credentials(changes)
        await broker.scope.publish(updates)
        _check("users", tuple(rejections.values()))


async def _alter_quotas(broker: ControlledBroker, quotas: Sequence[SeedQuota]) -> None:
    changes = [
        QuotaChange(
            tuple(
                (kind, None if name == DEFAULT_ENTITY else name)
                for kind, name in (
                    (USER_TYPE, quota.user),
                    (CLIENT_TYPE, quota.client_id),
                    (IP_TYPE, quota.ip),
                )
                if name is not None
            ),
            tuple(quota.limits.items()),
        )
        for quota in quotas
    ]
    if changes:
        outcome = await broker.scope.cluster.alter_quotas(changes)
        await broker.scope.publish(outcome.updates)
        _check("quotas", outcome.rejections)


def _check(what: str, rejections: Sequence[ChangeRejected | None], hint: str = "") -> None:
    for place, rejection in enumerate(rejections):
        if rejection is not None:
            where = what if len(rejections) == 1 else f"{what}.{place}"
            raise ApiError(rejection.code.name, f"{where}: {rejection.text}{hint}")


async def seed_before_ready(
    broker: ControlledBroker,
    seed: Mapping[str, Any],
    ready: Callable[[], None],
    refuse: Callable[[str], None],
) -> None:
    """Apply a seed when the workers have registered, and report that the controller is ready."""
    try:
        while len(await broker.publisher.request_all(LogsRequest(""), broker.workers)) < len(
            broker.workers
        ):
            await broker.env.clock.sleep_real(POLL_S)
        await apply_seed(broker, parse(Seed, seed))
    except (ApiError, InvalidJson) as error:
        refuse(f"the seed can't be applied: {error}")
        return
    ready()
