"""A process that has imported the broker, and forks brokers for tests.

Importing a broker takes longer than starting one, so this process imports it once. A test process
connects to its Unix socket; that connection is a lease. Owns the leases and the processes. It must
never run an event loop or a thread, which would make forking unsafe. Invariant: a broker runs
exactly as long as a lease on it is open, and this process as long as its parent or any lease; at
most one broker, the spare, runs without a lease, while the parent lives. Like
``multiprocessing``'s fork server.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any, Final, NoReturn

from minibroker.broker.settings import ConfigError, SettingEntry, Settings
from minibroker.broker.settings.definitions import PERSONA
from minibroker.broker.settings.setting import BROKER_SETTINGS, Kind
from minibroker.runtime.supervisor import clear_type_cache
from minibroker.runtime.system import (
    close_nameless,
    end_with_parent,
    fork_watched,
    is_portable,
    is_same_user,
)

REQUEST_BYTES_MAX: Final = 1024 * 1024
LOG_BYTES_MAX: Final = 256 * 1024
"""Size of the end of a broker's standard error that a test gets."""
DEFAULTS: Final = {"listeners": "PLAINTEXT://127.0.0.1:0", "control.listener": "127.0.0.1:0"}

LATE: Final = (
    "encodings.utf_16_be",
    "encodings.utf_16_le",
    "minibroker.lab.control.http",
    "minibroker.lab.control.server",
    "minibroker.lab.control.operations",
    "minibroker_protocol.codecs",
)
"""Modules that every broker imports by itself, when it starts or at its first control request."""

NUMBERS: Final = frozenset({Kind.BOOLEAN, Kind.INT, Kind.SHORT, Kind.LONG, Kind.DOUBLE})
"""Kinds of settings whose values name nothing outside of the broker."""

Start = Callable[[Settings], int]
"""Runs a broker to its end: prints when it is ready, and returns the exit status."""


@dataclass(eq=False)
class LeasedBroker:
    """A running broker and its leases."""

    pid: int
    watch: int
    """Descriptor that becomes readable when the process ends."""
    output: IO[bytes]
    log: IO[bytes]
    share: str | None
    leases: set[BrokerLease] = field(default_factory=set)
    said: bytes = b""
    ready: bytes = b""
    ending: bool = False


@dataclass(eq=False)
class BrokerLease:
    """One connection of a test process."""

    connection: socket.socket
    received: bytes = b""
    broker: LeasedBroker | None = None


class SpareRule:
    """The settings of the broker that is kept ready in advance.

    Decides by the requests for brokers of one test each; shared brokers do not count. Invariant:
    two brokers with such settings can run at the same time, and one that was started earlier
    differs in nothing.
    """

    def __init__(self) -> None:
        self.settings: Mapping[str, str] | None = None
        """Those of the broker to keep ready, or None for no broker."""
        self._last: Mapping[str, str] | None = None

    def requested(self, settings: Mapping[str, str]) -> None:
        """Note a request: the second one in a row with the same settings makes a third likely."""
        if settings == self._last and are_repeatable(settings):
            self.settings = settings
        self._last = settings

    def failed(self) -> None:
        """Note that the broker that was kept ready ended: the next request gets its own."""
        self.settings = self._last = None


def are_repeatable(settings: Mapping[str, str]) -> bool:
    """Whether no setting names a file, an address or a server, which may change or be in use."""
    return all(
        name == PERSONA.name
        or ((known := BROKER_SETTINGS.get(name)) is not None and known.type.kind in NUMBERS)
        for name in settings
    )


class ForkServer:
    """The loop over leases, outputs and ends of brokers."""

    def __init__(
        self,
        listener: socket.socket,
        parent: int,
        start: Start,
        when_idle: Callable[[], None] = lambda: None,
    ) -> None:
        """``when_idle`` is called once, when no broker is starting and no request is expected."""
        self._listener = listener
        self._parent: int | None = parent
        self._parent_descriptor = parent
        self._start = start
        self._when_idle: Callable[[], None] | None = when_idle
        self._selector = selectors.DefaultSelector()
        self._leases: set[BrokerLease] = set()
        self._brokers: set[LeasedBroker] = set()
        self._spare_rule = SpareRule()
        self._spare: LeasedBroker | None = None
        """Runs in advance, with these settings, for the next lease that requests them."""
        self._spare_settings: Mapping[str, str] | None = None
        self._end_with_parent = end_with_parent()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(parent, selectors.EVENT_READ, self._parent_ended)

    def run(self) -> None:
        """Serve until the parent has ended, no lease is open, and every broker has ended."""
        while self._parent is not None or self._leases or self._brokers:
            if self._when_idle is None or not self._is_idle():
                events = self._selector.select()
            elif not (events := self._selector.select(timeout=0)):
                self._when_idle()
                self._when_idle = None
            for key, _ in events:
                # An earlier event of this round may have closed the descriptor, and another may
                # have its number since.
                if self._selector.get_map().get(key.fd) is key:
                    key.data()
            self._tend_spare()

    def _tend_spare(self) -> None:
        """Keep the broker of the rule ready, without delaying one that starts."""
        wanted = None if self._parent is None else self._spare_rule.settings
        if self._spare is not None and self._spare_settings != wanted:
            self._end(self._spare)
            self._spare = None
        is_free = self._when_idle is None and self._is_idle()
        if self._spare is None and wanted is not None and is_free:
            self._spare = self._fork(read_settings(wanted), None)
            self._spare_settings = wanted

    def _is_idle(self) -> bool:
        leases_have_brokers = all(lease.broker is not None for lease in self._leases)
        return leases_have_brokers and all(broker.ready for broker in self._brokers)

    def _parent_ended(self) -> None:
        if self._parent is not None:
            self._selector.unregister(self._parent)
            self._parent = None

    # -------------------------------------------------------------------------------- leases

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        if not is_same_user(connection):
            connection.close()
            return
        lease = BrokerLease(connection)
        self._leases.add(lease)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._receive(lease))

    def _receive(self, lease: BrokerLease) -> None:
        try:
            chunk = lease.connection.recv(65536)
        except ConnectionResetError:
            chunk = b""
        if not chunk or len(lease.received) > REQUEST_BYTES_MAX:
            self._release(lease)
            return
        *lines, lease.received = (lease.received + chunk).split(b"\n")
        for line in lines:
            self._answer(lease, json.loads(line))

    def _answer(self, lease: BrokerLease, request: Mapping[str, Any]) -> None:
        if request["ask"] == "log":
            text = tail(lease.broker.log) if lease.broker else ""
            send_event(lease, {"event": "log", "text": text})
            return
        try:
            kept = self._find_broker(request["settings"], request["share"])
        except ConfigError as error:
            send_event(lease, {"event": "failed", "text": str(error)})
            return
        kept.leases.add(lease)
        lease.broker = kept
        if kept.ready:
            send(lease, kept.ready)

    def _release(self, lease: BrokerLease) -> None:
        """End a lease: its broker is stopped if this was the last one."""
        self._selector.unregister(lease.connection)
        self._leases.discard(lease)
        kept = lease.broker
        if kept is None or len(kept.leases) > 1:
            if kept is not None:
                kept.leases.discard(lease)
            lease.connection.close()
        elif not kept.ending:
            self._end(kept)  # the lease is answered when the process has ended

    # ------------------------------------------------------------------------------- brokers

    def _find_broker(self, settings: Mapping[str, str], share: str | None) -> LeasedBroker:
        """Return the broker for a lease, perhaps a new one. Raises `ConfigError`."""
        if share is not None:
            shared = (k for k in self._brokers if k.share == share and not k.ending)
            return next(shared, None) or self._fork(read_settings(settings), share)
        if self._spare is not None and self._spare_settings == settings:
            kept, self._spare = self._spare, None
        else:
            kept = self._fork(read_settings(settings), None)
        self._spare_rule.requested(settings)
        return kept

    def _end(self, kept: LeasedBroker) -> None:
        kept.ending = True
        os.kill(kept.pid, signal.SIGTERM)

    def _fork(self, settings: Settings, share: str | None) -> LeasedBroker:
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the broker has ended
        reading, writing = os.pipe()
        pid, watch = fork_watched()
        if not pid:
            os.close(reading)
            self._run_broker(settings, writing, log.fileno())
        os.close(writing)
        kept = LeasedBroker(pid, watch, os.fdopen(reading, "rb", buffering=0), log, share)
        self._brokers.add(kept)
        self._selector.register(kept.output, selectors.EVENT_READ, lambda: self._listen(kept))
        self._selector.register(kept.watch, selectors.EVENT_READ, lambda: self._reap(kept))
        return kept

    def _run_broker(self, settings: Settings, output: int, log: int) -> NoReturn:
        """Be the supervisor of a broker, in the child, until it ends."""
        code = 1
        try:
            if self._end_with_parent is not None:
                self._end_with_parent(signal.SIGTERM)
            os.dup2(output, 1)
            os.dup2(log, 2)
            os.close(output)
            self._close_inherited_descriptors()
            code = self._start(settings)
        except BaseException:  # noqa: BLE001 - whatever it is, the log must have it
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _close_inherited_descriptors(self) -> None:
        """Close inherited descriptors in the child: an open copy would keep leases alive."""
        self._selector.close()
        self._listener.close()
        for lease in self._leases:
            lease.connection.close()
        for kept in self._brokers:
            for lease in kept.leases:  # also a released one, which waits for the broker's end
                lease.connection.close()
            kept.output.close()
            os.close(kept.watch)
        os.dup2(os.open(os.devnull, os.O_RDONLY), self._parent_descriptor)

    def _listen(self, kept: LeasedBroker) -> None:
        chunk = kept.output.read(65536)
        if not chunk:
            self._selector.unregister(kept.output)
            return
        kept.said += chunk
        if not kept.ready and b"\n" in kept.said:
            kept.ready = kept.said[: kept.said.index(b"\n") + 1]
            for lease in kept.leases:
                send(lease, kept.ready)

    def _reap(self, kept: LeasedBroker) -> None:
        _, status = os.waitpid(kept.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self._selector.unregister(kept.watch)
        if kept.output.fileno() in self._selector.get_map():
            self._selector.unregister(kept.output)
        self._brokers.discard(kept)
        if kept is self._spare:
            self._spare = None
            self._spare_rule.failed()
        event = "stopped" if kept.ready else "failed"
        for lease in kept.leases:
            send_event(lease, {"event": event, "code": code, "text": tail(kept.log)})
            if lease not in self._leases:
                lease.connection.close()  # released earlier, and waited for this answer
            lease.broker = None
        os.close(kept.watch)
        kept.output.close()
        kept.log.close()


def read_settings(wanted: Mapping[str, str]) -> Settings:
    """Settings of a test's broker: free ports unless it asks for others."""
    given = [SettingEntry(name, value, "settings") for name, value in wanted.items()]
    defaults = [SettingEntry(name, value, "default") for name, value in DEFAULTS.items()]
    return Settings.from_entries(defaults + given)


def tail(log: IO[bytes]) -> str:
    """The end of what was written to ``log``."""
    size = os.fstat(log.fileno()).st_size
    return os.pread(log.fileno(), LOG_BYTES_MAX, max(0, size - LOG_BYTES_MAX)).decode(
        errors="replace"
    )


def send_event(lease: BrokerLease, message: Mapping[str, Any]) -> None:
    """Send one message to a test process."""
    send(lease, json.dumps(message).encode() + b"\n")


def send(lease: BrokerLease, line: bytes) -> None:
    """Send one line; a test process that has ended needs none."""
    with suppress(BrokenPipeError, ConnectionResetError):
        lease.connection.sendall(line)


def main() -> None:
    """Serve leases on the listening socket whose descriptor is the argument."""
    with importing():
        from minibroker import launch
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket(fileno=int(sys.argv[1]))
    watched_parent = os.getpid() if is_portable() else None  # Otherwise the system reports its end.
    ForkServer(
        listener,
        parent=0,
        start=partial(launch.start, json_ready=True, parent_pid=watched_parent),
        when_idle=import_late_modules,
    ).run()
    close_nameless(listener)


def import_late_modules() -> None:
    """Import what brokers otherwise import after they were forked.

    The first broker does not wait for it: it takes a fifth of all imports.
    """
    with importing():
        for name in LATE:
            importlib.import_module(name)


@contextmanager
def importing() -> Iterator[None]:
    """Exclude imported modules from garbage collection: they stay, and brokers share them.

    Afterwards the cache of type attributes is empty, so that a broker writes to fewer shared pages
    when it clears its copy.
    """
    gc.disable()
    try:
        yield
    finally:
        clear_type_cache()
        gc.freeze()
        gc.enable()
