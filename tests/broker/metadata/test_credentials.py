"""Changes of SCRAM credentials in the image; a user's quotas are unaffected."""

from __future__ import annotations

import pytest

from minibroker.broker.metadata.credentials import (
    CredentialChange,
    iterations,
    plan_credentials,
    shapes,
    users,
)
from minibroker.broker.metadata.image import USER, ChangeRejected, ConfigChanged, Image, apply
from minibroker.broker.security.scram import Credential, CredentialShape, credential_text
from minibroker_protocol.errors import ErrorCode

CREDENTIAL = Credential(b"salt", b"stored", b"server", 4096)
QUOTA = {"producer_byte_rate": "1000"}


def set_to(user: str = "a b", mechanism: int = 1, count: int = 4096) -> CredentialChange:
    return CredentialChange(user, mechanism, CREDENTIAL._replace(iterations=count))


def gone(user: str = "a b", mechanism: int = 1) -> CredentialChange:
    return CredentialChange(user, mechanism, None)


def after(image: Image, *wanted: CredentialChange) -> Image:
    for plan in plan_credentials(image, wanted).values():
        assert isinstance(plan, ConfigChanged)
        image = apply(image, plan)
    return image


def test_credential_changes_keep_quotas_of_user() -> None:
    image = apply(Image(), ConfigChanged(USER, "a%20b", QUOTA))
    image = after(image, set_to(), set_to(mechanism=2, count=8192))
    config = image.configs[USER, "a%20b"]
    assert config.items() >= QUOTA.items()
    assert config["SCRAM-SHA-512"].endswith("iterations=8192")
    assert list(users(image)) == ["a b"]
    assert iterations(image, "a b") == {1: 4096, 2: 8192}
    image = after(image, gone(), set_to(mechanism=2, count=5000))
    assert iterations(image, "a b") == {2: 5000}
    image = after(image, gone(mechanism=2))
    assert image.configs[USER, "a%20b"] == QUOTA
    assert list(users(image)) == []


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ([set_to("")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([set_to(mechanism=3)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([gone(mechanism=0)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([set_to(count=4095)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([set_to(count=16385)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([gone()], ErrorCode.RESOURCE_NOT_FOUND),
        ([set_to(), set_to()], ErrorCode.DUPLICATE_RESOURCE),
        ([set_to(mechanism=2), set_to(count=1)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([gone(""), gone(""), set_to("")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([set_to(), gone(), gone(mechanism=3)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([gone(), gone(), set_to(count=1)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([set_to(), gone()], ErrorCode.DUPLICATE_RESOURCE),
    ],
)
def test_invalid_credential_change_rejects_only_its_user(
    wanted: list[CredentialChange], code: ErrorCode
) -> None:
    plans = plan_credentials(Image(), [*wanted, set_to("other")])
    refusal = plans[wanted[0].user]
    assert isinstance(refusal, ChangeRejected)
    assert refusal.code == code
    assert isinstance(plans["other"], ConfigChanged)


def test_scram_shapes_are_per_mechanism_most_frequent_first() -> None:
    image = after(Image(), set_to("a"), set_to("b", count=8192), set_to("c", count=8192))
    image = after(image, set_to("a", mechanism=2, count=5000))
    image = apply(image, ConfigChanged(USER, "d", {**QUOTA, "SCRAM-SHA-256": "nonsense"}))
    too_few = credential_text(CREDENTIAL._replace(iterations=4095))
    image = apply(image, ConfigChanged(USER, "e", {"SCRAM-SHA-256": too_few}))
    salt = len(CREDENTIAL.salt)
    assert shapes(image, "SCRAM-SHA-256") == (
        CredentialShape(8192, salt, 2),
        CredentialShape(4096, salt, 1),
    )
    assert shapes(image, "SCRAM-SHA-512") == (CredentialShape(5000, salt, 1),)
    assert shapes(Image(), "SCRAM-SHA-256") == ()
