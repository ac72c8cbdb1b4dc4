from __future__ import annotations

from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    load_pem_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from cryptography.x509 import load_pem_x509_certificates

from system_tests.harness.archives import unpack
from system_tests.harness.jars import ToolchainMissing
from system_tests.suites.kafka_service import pem_stores, read_properties


def test_properties_are_read_with_everything_after_the_first_equals_sign() -> None:
    text = 'a=1\n\nsasl.jaas.config=X required user_a="b";\n'
    assert read_properties(text) == {"a": "1", "sasl.jaas.config": 'X required user_a="b";'}


def test_java_keystore_is_converted_to_pem_with_its_chain(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    [own] = load_pem_x509_certificates(issued.cert_chain_pems[0].bytes())
    [root] = load_pem_x509_certificates(authority.cert_pem.bytes())
    store = serialize_key_and_certificates(
        b"localhost",
        key,  # type: ignore[arg-type]
        own,
        [root],
        BestAvailableEncryption(b"foobar"),
    )
    (tmp_path / "server.jks").write_bytes(store)
    settings = pem_stores(
        tmp_path,
        {
            "ssl.keystore.location": f"{tmp_path}/server.jks",
            "ssl.keystore.password": "foobar",
        },
    )
    assert settings == {
        "ssl.keystore.location": f"{tmp_path}/keystore.pem",
        "ssl.keystore.type": "PEM",
    }
    pem = (tmp_path / "keystore.pem").read_bytes()
    assert load_pem_x509_certificates(pem) == [own, root]
    assert load_pem_private_key(pem, None).public_key() == own.public_key()


def test_archive_with_another_digest_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "a.tar.gz"
    file.write_bytes(b"changed")
    with pytest.raises(ToolchainMissing, match="not the pinned"):
        unpack(file, "0" * 64, tmp_path / "contents")
