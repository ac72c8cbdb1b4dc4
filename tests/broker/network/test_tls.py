"""TLS: contexts of listeners, texts of failures, and bounded buffers."""

from __future__ import annotations

import os
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from minibroker.broker.network.tls import (
    CIPHER_BYTES_MAX,
    TlsHandshakeFailed,
    TlsStream,
    tls_context,
)
from minibroker.broker.settings import ConfigError, Settings
from minibroker.runtime.stream import memory_stream_pair
from tests.broker.network.certificates import client_context, keystore, truststore

SSL = "listeners=SSL://127.0.0.1:0"


def contexts(*pairs: str) -> dict[str, ssl.SSLContext]:
    return {"SSL": tls_context(Settings.from_sources(pairs=[SSL, *pairs]), "SSL").context}


def refusal(*pairs: str) -> str:
    with pytest.raises(ConfigError) as caught:
        contexts(*pairs)
    [text] = caught.value.problems
    return text


async def agree(
    server: ssl.SSLContext, client: ssl.SSLContext
) -> tuple[TlsStream, TlsStream, str | None]:
    """Both ends, and why they could not agree."""
    near, far = memory_stream_pair()
    ours = TlsStream(near, server)
    theirs = TlsStream(far, client, server_side=False)
    failures: list[str] = []

    async def try_ours() -> None:
        try:
            await ours.handshake()
        except TlsHandshakeFailed as failure:
            failures.append(str(failure))
            ours.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(try_ours)
        try:
            await theirs.handshake()
            await theirs.receive_into(memoryview(bytearray(0)))
        except Exception:  # noqa: BLE001 - our side is what is looked at
            theirs.close()
    return ours, theirs, failures[0] if failures else None


async def test_key_and_chain_may_be_given_as_text(tmp_path: Path) -> None:
    pem = keystore(tmp_path).read_text()
    end = pem.index("-----BEGIN CERTIFICATE")
    given = [f"ssl.keystore.key={pem[:end]}", f"ssl.keystore.certificate.chain={pem[end:]}"]
    made = contexts(*given, f"ssl.truststore.certificates={truststore(tmp_path).read_text()}")
    _, _, failure = await agree(made["SSL"], client_context())
    assert failure is None


def test_invalid_key_is_rejected_without_being_shown(tmp_path: Path) -> None:
    assert "can't be read: No such file" in refusal("ssl.keystore.location=/nowhere.pem")
    text = refusal("ssl.keystore.key=topsecret", "ssl.keystore.certificate.chain=c")
    assert "topsecret" not in text
    assert "PEM private key" in text
    java = tmp_path / "server.jks"
    java.write_bytes(b"\xfe\xed\xfe\xed\x00\x00\x00\x02")
    assert "keytool -importkeystore" in refusal(f"ssl.keystore.location={java}")
    key = f"ssl.keystore.location={keystore(tmp_path)}"
    bare = "".join(keystore(tmp_path).read_text().partition("-----BEGIN CERTIFICATE")[:1])
    (tmp_path / "bare.pem").write_text(bare)
    assert "can't be used" in refusal(f"ssl.keystore.location={tmp_path / 'bare.pem'}")
    empty = tmp_path / "empty.pem"
    empty.touch()
    assert "has no certificates" in refusal(key, f"ssl.truststore.location={empty}")


async def test_old_client_is_rejected_with_a_reason(tmp_path: Path) -> None:
    made = contexts(f"ssl.keystore.location={keystore(tmp_path)}", "ssl.enabled.protocols=TLSv1.3")
    old = client_context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    _, _, failure = await agree(made["SSL"], old)
    assert failure == "TLS failed: unsupported protocol"


async def test_untrusted_certificate_is_rejected_with_a_reason(tmp_path: Path) -> None:
    made = contexts(
        f"ssl.keystore.location={keystore(tmp_path)}",
        f"ssl.truststore.location={truststore(tmp_path)}",
        "ssl.client.auth=required",
    )
    ours, _, failure = await agree(made["SSL"], client_context("alice"))
    assert failure is None
    subject = ours.subject()
    assert subject is not None
    assert (("commonName", "alice"),) in subject
    _, _, failure = await agree(made["SSL"], client_context("alice", expired=True))
    assert failure == "TLS failed: the client's certificate is rejected: certificate has expired"
    _, _, failure = await agree(made["SSL"], client_context())
    assert failure == "TLS failed: peer did not return a certificate"


async def test_failure_of_a_client_has_the_reason_of_openssl(tmp_path: Path) -> None:
    near, far = memory_stream_pair()
    ours = TlsStream(near, contexts(f"ssl.keystore.location={keystore(tmp_path)}")["SSL"])
    without_authorities = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    theirs = TlsStream(far, without_authorities, server_side=False, server_hostname="127.0.0.1")

    async def serve() -> None:
        with suppress(TlsHandshakeFailed):
            await ours.handshake()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        with pytest.raises(TlsHandshakeFailed) as caught:
            await theirs.handshake()
    assert isinstance(caught.value.failure, ssl.SSLCertVerificationError)


async def test_large_message_is_sent_in_chunks(tmp_path: Path) -> None:
    made = contexts(f"ssl.keystore.location={keystore(tmp_path)}")
    ours, theirs, _ = await agree(made["SSL"], client_context())
    data = os.urandom(3_000_000)
    received = bytearray(len(data))
    largest = 0

    async def receive() -> None:
        nonlocal largest
        filled = 0
        while filled < len(data):
            filled += await theirs.receive_into(memoryview(received)[filled:])
            largest = max(largest, ours._outgoing.pending, theirs._received.pending)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await ours.send_all(data)
    assert received == data
    assert largest <= CIPHER_BYTES_MAX
