from __future__ import annotations

from minibroker.broker.apis.authorization.wrap import Authorizers
from minibroker.broker.metadata.image import AclsChanged, BrokerGone, Image, apply
from minibroker.broker.security.acl import AclRule, Operation, Pattern, Permission, Resource
from minibroker.broker.security.principal import ANONYMOUS
from minibroker.broker.settings import Settings
from tests.broker.apis.authorization.callers import ALICE, SETTINGS

PATTERN = Pattern(Resource.TOPIC, "cats")
RULE = AclRule("User:*", "*", Operation.READ, Permission.ALLOW)


def test_authorizer_is_rebuilt_only_if_acls_change() -> None:
    assert Authorizers(Settings.from_sources()).of(Image()) is None
    authorizers = Authorizers(Settings.from_sources(pairs=SETTINGS))
    image = Image()
    first = authorizers.of(image)
    assert first is not None
    assert authorizers.of(apply(image, BrokerGone(7))) is first
    image = apply(image, AclsChanged(PATTERN, (RULE,)))
    second = authorizers.of(image)
    assert second is not None
    asked = (ALICE, "h", Operation.READ, Resource.TOPIC, "cats")
    assert (first.allows(*asked), second.allows(*asked)) == (False, True)
    assert apply(image, AclsChanged(PATTERN, ())).acls == {}


def test_resource_without_acl_is_allowed_if_configured() -> None:
    open_house = (*SETTINGS, "allow.everyone.if.no.acl.found=true")
    authorizer = Authorizers(Settings.from_sources(pairs=open_house)).of(Image())
    assert authorizer is not None
    assert authorizer.allows(ANONYMOUS, "h", Operation.READ, Resource.TOPIC, "cats")
