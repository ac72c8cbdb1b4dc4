"""Modules that are loaded before the fork, by settings."""

from __future__ import annotations

import subprocess
import sys

import pytest

AUTHORIZER = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
TLS = ("listeners=SSL://127.0.0.1:0", "ssl.keystore.location=/server.pem")
PROGRAM = """
import sys
from minibroker.broker.processes import preload
from minibroker.config import Settings
preload(Settings.from_sources(pairs=sys.argv[1:]))
print(*sys.modules)
"""


@pytest.mark.parametrize(
    ("pairs", "loaded", "missing"),
    [
        (
            (),
            {"protocol.codecs", "encodings.utf_16_le"},
            {
                "minibroker.apis.authorization.table",
                "minibroker.network.tls",
                "javaproperties",
                "difflib",
            },
        ),
        ((AUTHORIZER,), {"minibroker.apis.authorization.table"}, {"minibroker.network.tls"}),
        (
            TLS,
            {"minibroker.network.tls", "encodings.utf_16_be", "encodings.utf_32_be"},
            {"minibroker.apis.authorization.table"},
        ),
    ],
)
def test_preload_imports_what_the_settings_need_and_no_more(
    pairs: tuple[str, ...], loaded: set[str], missing: set[str]
) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, *pairs], capture_output=True, text=True, check=True
    )
    modules = set(run.stdout.split())
    assert loaded <= modules
    assert not missing & modules


BIND = """
import sys
from minibroker.broker.startup import bind
from minibroker.config import Settings
from minibroker.control.serve import open_listener
settings = Settings.from_sources(pairs=["listeners=PLAINTEXT://127.0.0.1:0"])
bind(settings.client_listeners, settings)
open_listener("127.0.0.1", 0)
print("encodings.idna" in sys.modules)
"""


def test_binding_imports_no_codec_of_international_names() -> None:
    run = subprocess.run([sys.executable, "-c", BIND], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
