"""Imports before the fork what a request may need later.

Owns the list of modules that are loaded late elsewhere, so that commands and tests start fast. It
must never know what they do. Invariant: after a role is ready, serving a request opens no Python
file: an import fails while a process has no descriptors left, and would break the request. The
control API is the exception: it is loaded when it is first asked, and a failed import is repeated.
"""

from __future__ import annotations

import codecs

from minibroker.config import Settings
from minibroker.config.access_definitions import AUTHORIZER_CLASS_NAME
from minibroker.config.listeners import has_tls


def preload(settings: Settings) -> None:
    """Import what these settings need."""
    import difflib  # noqa: F401 - suggests names of settings

    import protocol.codecs  # noqa: F401 - decompresses batches

    codecs.lookup("utf-16-le")  # Used for the partition of a group.
    if settings[AUTHORIZER_CLASS_NAME]:
        import minibroker.apis.authorization.table
    protocols = (settings.security_protocol(one.name) for one in settings.client_listeners)
    if any(map(has_tls, protocols)):
        import minibroker.network.tls  # noqa: F401

        for encoding in ("utf-16-be", "utf-32-be"):  # Used for names in renewed certificates.
            codecs.lookup(encoding)
