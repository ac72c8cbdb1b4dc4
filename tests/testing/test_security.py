"""``broker.certificates`` and ``broker.tokens`` change what a broker shows and issues."""

from __future__ import annotations

import asyncio
from pathlib import Path

import jwt
import pytest

from minibroker.testing import ControlError, MiniBroker, SharedBrokerError
from minibroker.testing.security import BrokerCertificates, BrokerTokens


def test_tokens_and_certificates_are_changed_and_awaited() -> None:
    async def use() -> None:
        async with MiniBroker(tls=True, sasl="oauth") as broker:
            view = await broker.certificates.present("wrong_host")
            assert view == {"kind": "wrong_host", "listeners": ["SASL_SSL"]}
            assert (await broker.certificates.renew())["kind"] == "valid"
            issued = await broker.tokens.issue("expired", lifetime_s=60)
            assert (issued["kind"], issued["lifetime_s"]) == ("expired", 60)
            token = await broker.tokens.create(
                subject="alice", lifetime_s=60, scope="all", claims={"team": "a"}
            )
            claims = jwt.decode(token, options={"verify_signature": False})
            assert (claims["sub"], claims["team"], claims["scope"]) == ("alice", "a", "all")
            assert claims["exp"] - claims["iat"] == 60
            rotated = await broker.tokens.rotate_keys(keep_old=False, algorithm="RS256")
            assert rotated["keys"] == (await broker.tokens.issuer())["keys"]

    asyncio.run(use())


def test_file_of_a_client_is_created_and_awaited() -> None:
    async def use() -> bool:
        async with MiniBroker(tls="mutual") as broker:
            file = await broker.certificates.create("expired", user="alice")
            return "PRIVATE KEY" in await asyncio.to_thread(Path(file).read_text)

    assert asyncio.run(use())


def test_broker_without_tls_and_oauth_says_so(minibroker: MiniBroker) -> None:
    # The shared broker is not used by its own properties, which are for one test only.
    control = minibroker.control
    for call in (BrokerCertificates(control).renew, BrokerTokens(control).issuer):
        with pytest.raises(ControlError, match=r"MiniBroker\(tls=True\)"):
            call()


def test_shared_broker_keeps_its_credentials() -> None:
    broker = MiniBroker(guarded=True)
    for handle in ("certificates", "tokens"):
        with pytest.raises(SharedBrokerError, match=f"{handle} would affect"):
            getattr(broker, handle)
