"""Credentials and tokens of users survive a restart of the controller."""

from __future__ import annotations

from pathlib import Path
from random import Random

from minibroker.broker.metadata.controller import ClusterController
from minibroker.broker.metadata.credentials import CredentialChange
from minibroker.broker.metadata.delegation_tokens import find_token, plan_token
from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore
from minibroker.broker.security.delegation_token import TokenLifetimes, issue
from minibroker.broker.security.principal import Principal
from minibroker.broker.security.scram import Credential
from minibroker.broker.settings import Settings

SETTINGS = Settings.from_sources()
ALICE = Principal("User", "alice")


async def start(store: SqliteStore) -> ClusterController:
    endpoints = {"PLAINTEXT": ("127.0.0.1", 9092)}
    return await ClusterController.start(
        store, SETTINGS, endpoints=endpoints, random=Random(1), wall_ms=0
    )


async def test_tokens_and_credentials_are_stored(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "metadata.db"))
    cluster = await start(store)
    lifetimes = TokenLifetimes(100, 10)
    token = issue(
        cluster.new_token_id(), ALICE, ALICE, (), now_ms=0, requested_ms=-1, lifetimes=lifetimes
    )
    outcome = await cluster.change_tokens(lambda image: [plan_token(image, token)])
    assert outcome.rejections == (None,)
    kept = Credential(b"salt", b"stored", b"server", 4096)
    rejections, updates = await cluster.alter_credentials([CredentialChange("alice", 1, kept)])
    assert rejections == {"alice": None}
    assert updates
    await store.close()
    store = SqliteStore(str(tmp_path / "metadata.db"))
    again = await start(store)
    assert find_token(again.image, token.token_id) == token
    assert "SCRAM-SHA-256" in again.image.configs["users", "alice"]
    await store.close()


async def test_ids_of_tokens_differ() -> None:
    store = SqliteStore(MEMORY)
    cluster = await start(store)
    assert len({cluster.new_token_id() for _ in range(50)}) == 50
    await store.close()
