"""Resolves host names outside the loop, each within a limit of real time.

Owns the threads that wait for the system's resolver. It must never know what the addresses are for.
Invariant: the caller's loop continues, an answer or an error arrives within `LOOK_UP_S`, and at
most `LOOK_UPS_MAX` look-ups are in progress. Like Java's ``InetAddress.getByName``, but no caller
waits for it with a lock held.

The time is the machine's, because an external resolver does not follow the broker's clock.
"""

from __future__ import annotations

import socket
from collections.abc import Collection
from queue import Empty, SimpleQueue
from threading import BoundedSemaphore, Thread
from typing import Final

import trio

LOOK_UP_S: Final = 5.0
"""How long to wait for one host's addresses."""

LOOK_UPS_MAX: Final = 8
"""Concurrent look-ups of a process, including abandoned ones, which only the system can end."""

_slots: Final = BoundedSemaphore(LOOK_UPS_MAX)


def is_address(host: str) -> bool:
    """Whether a text is an address itself, perhaps with a zone."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host.partition("%")[0])
        except OSError:
            continue
        return True
    return False


def resolver_name(host: str) -> str | bytes:
    """Return the argument of ``socket.getaddrinfo`` for a host.

    Python imports its codec of international names for any text, but not for bytes.
    """
    return host.encode() if host.isascii() else host


async def look_up(host: str) -> list[str]:
    """Return the addresses of a host. Raises ``OSError`` without one or after ``LOOK_UP_S``."""
    return await trio.to_thread.run_sync(
        _look_up_in_thread, host, LOOK_UP_S, abandon_on_cancel=True
    )


async def unresolvable(hosts: Collection[str]) -> frozenset[str]:
    """Return the hosts that cannot be resolved."""
    unknown: set[str] = set()

    async def resolve(host: str) -> None:
        try:
            await look_up(host)
        except OSError:
            unknown.add(host)

    async with trio.open_nursery() as nursery:
        for host in {host for host in hosts if not is_address(host)}:
            nursery.start_soon(resolve, host)
    return frozenset(unknown)


def _look_up_in_thread(host: str, seconds: float) -> list[str]:
    if not _slots.acquire(timeout=seconds):
        raise OSError(f"{host}: {LOOK_UPS_MAX} other look-ups are in progress and do not finish")
    answers: SimpleQueue[list[str] | OSError] = SimpleQueue()
    Thread(target=_resolve, args=(host, answers), name=f"look up {host}", daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except Empty:
        raise OSError(f"{host}: no answer within {seconds:g} s") from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def _resolve(host: str, answers: SimpleQueue[list[str] | OSError]) -> None:
    try:
        found = socket.getaddrinfo(resolver_name(host), None, type=socket.SOCK_STREAM)
    except OSError as error:
        answers.put(error)
    except UnicodeError:  # A label is empty or too long.
        answers.put(OSError(f"{host} is not a valid host name"))
    else:
        answers.put(list(dict.fromkeys(str(entry[4][0]) for entry in found)))
    finally:
        _slots.release()
