"""Modules that are loaded before the fork, by settings."""

from __future__ import annotations

import subprocess
import sys

import pytest

AUTHORIZER = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
TLS = ("listeners=SSL://127.0.0.1:0", "ssl.keystore.location=/server.pem")
PROGRAM = """
import sys
from minibroker.launch.processes import preload
from minibroker.broker.settings import Settings
preload(Settings.from_sources(pairs=sys.argv[1:]))
print(*sys.modules)
"""


@pytest.mark.parametrize(
    ("pairs", "loaded", "missing"),
    [
        (
            (),
            {"minibroker_protocol.codecs", "encodings.utf_16_le"},
            {
                "minibroker.broker.apis.authorization.special_checks",
                "minibroker.broker.network.tls",
                "javaproperties",
                "difflib",
            },
        ),
        (
            (AUTHORIZER,),
            {"minibroker.broker.apis.authorization.special_checks"},
            {"minibroker.broker.network.tls"},
        ),
        (
            TLS,
            {"minibroker.broker.network.tls", "encodings.utf_16_be", "encodings.utf_32_be"},
            {"minibroker.broker.apis.authorization.special_checks"},
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
from minibroker.launch.startup import bind
from minibroker.broker.settings import Settings
from minibroker.lab.control.attach import open_listener
settings = Settings.from_sources(pairs=["listeners=PLAINTEXT://127.0.0.1:0"])
bind(settings.client_listeners, settings)
open_listener("127.0.0.1", 0)
print("encodings.idna" in sys.modules)
"""


def test_binding_imports_no_codec_of_international_names() -> None:
    run = subprocess.run([sys.executable, "-c", BIND], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
