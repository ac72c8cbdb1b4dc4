"""The served APIs by key, and what one broker serves and advertises of them.

Checks that every advertised version has a schema, and owns how a persona narrows the registry.
Invariant: exactly one API serves a key; without a persona the registry is served as it is, and
with one, a version is served only if both have it. In Kafka: ``ApiKeys``, ``ApiVersionManager`` and
the dispatch of ``KafkaApis.handle``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from minibroker.broker.apis import (
    acls,
    api_versions,
    client_quotas,
    client_telemetry,
    cluster,
    configs,
    consumer_groups,
    control_requests,
    credentials,
    find_coordinator,
    group_offsets,
    groups,
    metadata,
    partition_logs,
    produce,
    replicas,
    share_fetch,
    share_groups,
    share_state,
    streams_groups,
    topics,
    transactions,
    write_txn_markers,
)
from minibroker.broker.apis.base import (
    SPECIAL,
    Context,
    Denied,
    Owner,
    Round,
    ServedApi,
    ServedVersions,
)
from minibroker.broker.apis.control_requests import CONTROL_REQUESTS
from minibroker.broker.apis.fetch import API
from minibroker.broker.metadata.image import Image
from minibroker.broker.security.acl import Acls, Authorizer
from minibroker.broker.security.principal import parse
from minibroker.broker.settings import (
    ADVERTISE_CONTROLLER_REQUESTS,
    ALLOW_EVERYONE_IF_NO_ACL_FOUND,
    AUTHORIZER_CLASS_NAME,
    PERSONA,
    SUPER_USERS,
    ZOOKEEPER_CONNECT,
    Settings,
)
from minibroker_protocol import registry

if TYPE_CHECKING:
    from minibroker.broker.personas.persona import Persona


# ------------------- Wraps each API in its authorization check, and keeps the authorizer up to date
# The order is: check, ``split``, ``merge``, then the completion function that the check returned.
# An API states what it requires; the modules that check it are loaded by the first request after an
# authorizer is configured. Invariant: a wrapped API sees only items that its caller is authorized
# for, by the ACLs of the image that the request reads; without an authorizer no check runs. Kafka's
# class is ``AuthHelper``.


def with_authorization_check(api: ServedApi) -> ServedApi:
    """Return the API with its authorization check."""
    requires = api.requires
    if requires == ():
        return api

    def split(ctx: Context, request: Any) -> Mapping[Owner, Any]:
        if ctx.authorizer is not None:
            if requires is SPECIAL:
                from minibroker.broker.apis.authorization.special_checks import SPECIAL_CHECKS

                ctx.finish = SPECIAL_CHECKS[api.key](ctx, request)
            else:
                from minibroker.broker.apis.authorization.checks import check_requirements

                ctx.finish = check_requirements(ctx, request, requires)
            if isinstance(ctx.finish, Denied):
                return {}
        return api.split(ctx, request)

    def merge(ctx: Context, request: Any, replies: Mapping[Owner, Any]) -> Any:
        if ctx.finish is None:
            return api.merge(ctx, request, replies)
        if isinstance(ctx.finish, Denied):
            return ctx.finish.response
        return ctx.finish(api.merge(ctx, request, replies))

    def next_round(ctx: Context, request: Any, replies: Mapping[Owner, Any]) -> Round | None:
        if api.next_round is None or isinstance(ctx.finish, Denied):
            return None
        return api.next_round(ctx, request, replies)

    return replace(api, split=split, merge=merge, next_round=api.next_round and next_round)


class Authorizers:
    """The current authorizer of a process: None, or one built from the ACLs of the newest image."""

    def __init__(self, settings: Settings) -> None:
        self._is_on = bool(settings[AUTHORIZER_CLASS_NAME])
        super_users = settings[SUPER_USERS]
        self._super_users = tuple(map(parse, super_users))
        self._allow_if_none = settings[ALLOW_EVERYONE_IF_NO_ACL_FOUND]
        self._acls: Acls | None = None
        self._newest: Authorizer | None = None

    def of(self, image: Image) -> Authorizer | None:
        """Authorizer for the ACLs of an image; None if authorization is off."""
        if self._is_on and image.acls is not self._acls:
            self._acls = image.acls
            self._newest = Authorizer(
                image.acls, self._super_users, allow_if_none=self._allow_if_none
            )
        return self._newest


def collect(apis: Iterable[ServedApi]) -> Mapping[int, ServedApi]:
    """APIs by key. Raises ``ValueError`` if one serves versions that the protocol lacks."""
    found: dict[int, ServedApi] = {}
    for api in apis:
        if api.key in found:
            raise ValueError(f"{api.key.name} is served twice")
        low, high = api.served
        declared = registry.schema(api.key).valid_versions
        if not (declared.has(low) and declared.has(high)):
            raise ValueError(
                f"{api.key.name} serves versions {low} to {high}, the protocol declares {declared}"
            )
        found[api.key] = with_authorization_check(api)
    return found


APIS: Final[Mapping[int, ServedApi]] = collect(
    [
        *acls.APIS,
        api_versions.API,
        *client_quotas.APIS,
        *client_telemetry.APIS,
        *cluster.APIS,
        *configs.APIS,
        *consumer_groups.APIS,
        *control_requests.APIS,
        *credentials.APIS,
        API,
        find_coordinator.API,
        *group_offsets.APIS,
        *groups.APIS,
        metadata.API,
        *partition_logs.APIS,
        produce.API,
        *replicas.APIS,
        *share_fetch.APIS,
        *share_groups.APIS,
        *share_state.APIS,
        *streams_groups.APIS,
        *topics.APIS,
        *transactions.APIS,
        write_txn_markers.API,
    ]
)


def advertised(settings: Settings) -> ServedVersions:
    """Versions that ApiVersions lists.

    The requests of a controller to brokers, which no Kafka 4 has, are listed only where there may
    be another controller: clients that guess Kafka's version take them for a sign of an old broker.
    """
    everything = settings[ADVERTISE_CONTROLLER_REQUESTS] or settings[ZOOKEEPER_CONNECT] is not None
    return {
        api.key: api.versions
        for api in APIS.values()
        if everything or api.key not in CONTROL_REQUESTS
    }


class Serving(NamedTuple):
    """The served APIs by key, and the versions that ApiVersions lists."""

    apis: Mapping[int, ServedApi]
    advertised: ServedVersions


def serving(settings: Settings) -> Serving:
    """Return what a broker with these settings serves."""
    persona = settings[PERSONA]
    if persona is None:
        return Serving(APIS, advertised(settings))
    apis = narrowed(APIS, persona)
    return Serving(apis, {api.key: api.versions for api in apis.values()})


def served_versions(apis: Mapping[int, ServedApi]) -> dict[int, tuple[int, int]]:
    """The lowest and the highest version of each API that requests may have."""
    return {key: api.served for key, api in apis.items()}


def narrowed(apis: Mapping[int, ServedApi], persona: Persona) -> dict[int, ServedApi]:
    """Return the APIs that a persona has, each in the versions of both."""
    found = {}
    for key, api in apis.items():
        if key not in persona.versions:
            continue
        low, high = api.versions
        listed = max(low, persona.versions[key].low), min(high, persona.versions[key].high)
        served_from = max(listed[0], api.served[0])
        if served_from <= listed[1]:
            # Versions that are listed but not served have no schema; there may be none of them.
            starts_later = served_from if served_from > listed[0] else None
            found[key] = replace(api, versions=listed, served_from=starts_later)
    return found
