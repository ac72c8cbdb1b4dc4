"""TLS: contexts of listeners, texts of failures, and bounded buffers."""

from __future__ import annotations

import os
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trustme

from minibroker.broker.network.tls import (
    CIPHER_BYTES_MAX,
    SslContexts,
    TlsHandshakeFailed,
    TlsStream,
    tls_context,
)
from minibroker.broker.settings import ConfigError, Settings
from minibroker.broker.settings.dynamic import BROKERS, DEFAULT_NAME, Configs
from minibroker.runtime.stream import memory_stream_pair
from tests.broker.network.certificates import authority, client_context, keystore, truststore

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


# ------------ Renewal of TLS contexts: which files may replace which, and the reasons of rejections


class Files:
    """Certificates in a folder, each written the next second of a clock of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._written_ns = 10**18

    def write(self, name: str, *hosts: str, subject: str = "broker", text: str = "") -> Path:
        path = self._directory / name
        made = authority().issue_cert(
            *hosts or ("localhost",), common_name=subject, organization_unit_name="Tests"
        )
        path.write_text(text or made.private_key_and_cert_chain_pem.bytes().decode())
        self._written_ns += 10**9
        os.utime(path, ns=(self._written_ns, self._written_ns))
        return path


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def keyring(*pairs: str, listeners: str = "SSL://127.0.0.1:0") -> SslContexts:
    made = SslContexts(Settings.from_sources(pairs=[f"listeners={listeners}", "node.id=7", *pairs]))
    made.follow({})
    return made


def own(**config: str | Path) -> Configs:
    """Return configs of this broker; two underscores represent the listener's prefix."""
    named = {
        name.replace("__", "listener.name.ssl.").replace("_", "."): str(value)
        for name, value in config.items()
    }
    return {(BROKERS, "7"): named}


def test_second_file_replaces_the_first(files: Files) -> None:
    keys = keyring(f"ssl.keystore.location={files.write('one.pem')}")
    before = keys.context("SSL")
    configs = own(__ssl_keystore_location=files.write("two.pem"))
    assert keys.problems(configs) == []
    assert keys.context("SSL") is before
    keys.follow(configs)
    assert keys.context("SSL") not in (None, before)
    assert keys.context("PLAINTEXT") is None


def test_keystore_is_reloaded_after_alter_if_file_changed(
    files: Files,
) -> None:
    path = files.write("one.pem")
    keys = keyring(f"ssl.keystore.location={path}")
    first = keys.context("SSL")
    keys.follow(own(__ssl_keystore_location=path))
    assert keys.context("SSL") is first  # as it was
    same = own(__ssl_keystore_location=path)
    keys.follow(same)
    files.write("one.pem")
    keys.follow(same)
    keys.follow({**same, (BROKERS, DEFAULT_NAME): {"max.connections": "5"}})
    assert keys.context("SSL") is first  # nothing was set for this broker
    keys.follow(own(__ssl_keystore_location=path))
    assert keys.context("SSL") is not first


def test_files_are_checked_for_any_config_of_this_broker(files: Files) -> None:
    path = files.write("one.pem")
    keys = keyring(f"ssl.keystore.location={path}")
    first = keys.context("SSL")
    files.write("one.pem")
    keys.follow(own(max_connections="9"))
    assert keys.context("SSL") is not first


def test_missing_file_changes_nothing(files: Files) -> None:
    path = files.write("one.pem")
    keys = keyring(f"ssl.keystore.location={path}")
    path.unlink()
    assert keys.problems(own(max_connections="9")) == []


def test_each_listener_has_its_own(files: Files) -> None:
    keys = keyring(
        f"ssl.keystore.location={files.write('one.pem')}",
        "listener.security.protocol.map=OTHER:SSL,SSL:SSL",
        listeners="SSL://127.0.0.1:0,OTHER://127.0.0.1:0",
    )
    other, first = keys.context("OTHER"), keys.context("SSL")
    keys.follow(own(__ssl_keystore_location=files.write("two.pem")))
    assert keys.context("OTHER") is other
    assert keys.context("SSL") is not first


def test_invalid_quota_file_changes_nothing(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    keys = keyring(f"ssl.keystore.location={files.write('one.pem')}")
    first = keys.context("SSL")
    bad = own(__ssl_keystore_location=files.write("bad.pem", text="no key"))
    [problem] = keys.problems(bad)
    assert "bad.pem (SSL): key and certificate can't be used" in problem
    keys.follow(bad)
    assert keys.context("SSL") is first
    [record] = caplog.records
    assert "bad.pem" in vars(record)["fields"]["reason"]
    missing = own(__ssl_keystore_location=files.write("two.pem").with_name("none.pem"))
    [problem] = keys.problems(missing)
    assert "none.pem: can't be read: No such file" in problem


def test_changed_subject_is_rejected_unless_allowed(files: Files) -> None:
    start = f"ssl.keystore.location={files.write('one.pem')}"
    configs = own(__ssl_keystore_location=files.write("two.pem", subject="somebody"))
    [problem] = keyring(start).problems(configs)
    assert problem.startswith("SSL: Keystore DistinguishedName does not match: existing=CN=broker")
    assert "new=CN=somebody" in problem
    assert "ssl.allow.dn.changes=true" in problem
    assert keyring(start, "ssl.allow.dn.changes=true").problems(configs) == []
    spelt = own(__ssl_keystore_location=files.write("two.pem", subject="BROKER "))
    assert keyring(start).problems(spelt) == []


def test_removed_names_are_rejected_unless_allowed(files: Files) -> None:
    start = f"ssl.keystore.location={files.write('one.pem', 'a', 'b')}"
    more = own(__ssl_keystore_location=files.write("more.pem", "a", "b", "c"))
    less = own(__ssl_keystore_location=files.write("less.pem", "a", "c"))
    keys = keyring(start)
    assert keys.problems(more) == []
    [problem] = keys.problems(less)
    assert problem.startswith("SSL: Keystore SubjectAltNames do not match: existing=DNS:a, DNS:b")
    assert "a certificate for DNS:b" in problem
    assert keyring(start, "listener.name.ssl.ssl.allow.san.changes=true").problems(less) == []
    keys.follow(more)
    [problem] = keys.problems(own(__ssl_keystore_location=files.write("one.pem", "a", "b")))
    assert "DNS:c" in problem  # compared with the context in force


def test_configs_found_at_start_are_not_compared(files: Files) -> None:
    start = f"ssl.keystore.location={files.write('one.pem')}"
    keys = SslContexts(
        Settings.from_sources(pairs=["listeners=SSL://127.0.0.1:0", "node.id=7", start])
    )
    first = keys.context("SSL")
    keys.follow(own(__ssl_keystore_location=files.write("two.pem", subject="somebody")))
    assert keys.context("SSL") is not first


def test_truststore_is_renewed_but_never_added(files: Files, tmp_path: Path) -> None:
    start = f"ssl.keystore.location={files.write('one.pem')}"
    trust = truststore(tmp_path)
    both = own(__ssl_truststore_location=files.write("more.pem", text=trust.read_text()))
    [problem] = keyring(start).problems(both)
    assert "Cannot add SSL truststore" in problem
    keys = keyring(start, f"ssl.truststore.location={trust}")
    before = keys.context("SSL")
    keys.follow(both)
    after = keys.context("SSL")
    assert after is not None
    assert after is not before
    other = trustme.CA().cert_pem.bytes().decode()
    files.write("more.pem", text=trust.read_text() + other)
    keys.follow(own(__ssl_truststore_location=tmp_path / "more.pem"))
    renewed = keys.context("SSL")
    assert renewed is not None
    assert len(renewed.get_ca_certs()) == len(after.get_ca_certs()) + 1


def test_log_contains_the_subject_of_the_new_certificate(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    keys = keyring(f"ssl.keystore.location={files.write('one.pem')}")
    with caplog.at_level("INFO"):
        keys.follow(own(__ssl_keystore_location=files.write("two.pem")))
    [record] = caplog.records
    fields = vars(record)["fields"]
    assert fields["listener"] == "SSL"
    assert fields["certificate"].startswith("CN=broker,")
