"""TCP connections within a test."""

from __future__ import annotations

import socket


def connected_sockets() -> tuple[socket.socket, socket.socket]:
    """Return the client's socket of a new connection, and the one that was accepted."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    return client, accepted
