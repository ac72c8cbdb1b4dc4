from __future__ import annotations

import pytest

from minibroker.broker.security.principal import ANONYMOUS, BadPrincipal, Principal, parse


@pytest.mark.parametrize("name", ["alice", "CN=a,O=b", "a:b", "*", "ä ö"])
def test_principal_survives_its_text(name: str) -> None:
    principal = Principal("User", name)
    assert parse(str(principal)) == principal


def test_anonymous_principal_is_user_anonymous() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"


@pytest.mark.parametrize("text", ["", "alice", "User:", ":alice"])
def test_incomplete_principal_is_rejected_with_example(text: str) -> None:
    with pytest.raises(BadPrincipal, match="User:alice"):
        parse(text)
