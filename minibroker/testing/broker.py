"""``MiniBroker``: a real broker in its own processes, for one test or many.

Owns the operations of a test on a broker, and the handles of the control API, which a proxy has
too; they are created at their first use, because their modules take milliseconds to import. It must
never access a broker except through the control API. Invariant: inside the context the addresses
are valid, and afterwards no process and no file of the broker is left. Kafka's own tests have
``KafkaClusterTestKit``.
"""

from __future__ import annotations

import functools
import json
import secrets
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    ParamSpec,
    Self,
    TypeVar,
)

from minibroker.seed_file import read_seed, text_of
from minibroker.testing.failures import FailureWarnings
from minibroker.testing.lease import Ended, ForkServerAddress, Lease, fork_server_of_process
from minibroker.testing.messages import ControlledMessages

if TYPE_CHECKING:
    from minibroker.client.control import Control
    from minibroker.secured import Secured
    from minibroker.seed_file import SeedSource
    from minibroker.testing.faults import FaultHandle, Faults
    from minibroker.testing.journal import RecordedJournal
    from minibroker.testing.security import BrokerCertificates, BrokerTokens


SEED_S: Final = 120.0
"""How long the broker may take to create a seed."""


class Controlled(ABC):
    """The base class of `MiniBroker` and `MiniProxy`, as a context manager."""

    _what: ClassVar[str]

    def __init__(self, *, guarded: bool = False) -> None:
        self._guarded = guarded
        """Whether other processes use it, so that calls which affect them are errors."""
        self._ready: dict[str, Any] = {}
        self._control: Control | None = None
        self._faults: Faults | None = None
        self._journal: RecordedJournal | None = None

    @abstractmethod
    def start(self) -> Self:
        """Start, and wait until clients can connect."""

    @abstractmethod
    def stop(self) -> None:
        """Stop, and wait until nothing is left; a second call does nothing."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` for any Kafka client."""
        return str(self._ready_value("bootstrap_servers"))

    @property
    def control_url(self) -> str:
        """The HTTP control API."""
        return str(self._ready_value("control_url"))

    @property
    def control(self) -> Control:
        """Calls to the control API that have no method here."""
        if self._control is None:
            from minibroker.client.control import Control

            self._control = Control(self.control_url)
        return self._control

    @property
    def faults(self) -> Faults:
        """Rules that make it misbehave, e.g. ``broker.faults.add("disconnect")``."""
        if self._faults is None:
            from minibroker.testing.faults import Faults

            self._faults = Faults(self.control, guarded=self._guarded)
        return self._faults

    @property
    def journal(self) -> RecordedJournal:
        """What happened: ``with broker.journal as journal: ...; journal.assert_happened(...)``."""
        if self._journal is None:
            from minibroker.testing.journal import RecordedJournal

            self._journal = RecordedJournal(self.control, guarded=self._guarded)
        return self._journal

    def _ready_value(self, key: str) -> object:
        if not self._ready:
            raise RuntimeError(
                f"the {self._what} is not running: use it as a context manager, or start()"
            )
        return self._ready[key]

    def _forget_ready(self) -> None:
        """Drop the addresses and handles of a process that ends."""
        if self._control is not None:
            self._control.close()
        self._control = self._faults = self._journal = None
        self._ready = {}


P = ParamSpec("P")
T = TypeVar("T")


class SharedBrokerError(RuntimeError):
    """A call that would affect other processes that share the broker."""


class BrokerSnapshot(NamedTuple):
    """A state of a broker to which it can return."""

    name: str


class BrokerNamespace(NamedTuple):
    """A part of a broker with topics, groups and transactional ids of its own."""

    name: str
    bootstrap_servers: str


class MiniBroker(Controlled, ControlledMessages):
    """A broker for a test: ``with MiniBroker() as broker: connect_to(broker.bootstrap_servers)``.

    ``settings`` are the broker's own, e.g. ``{"num.partitions": 3}``; see ``minibroker settings
    list``. ``persona``, e.g. ``"kafka-2.8"``, sets the setting of this name: clients meet a broker
    of that version. ``seed`` is the broker's first content, as for `seed`. ``tls=True`` or
    "mutual", and ``sasl="scram-sha-512"``, "scram-sha-256", "plain" or "oauth", secure the address
    of clients: `client_config` has what they need. By default, ports are free ones and data is in
    memory. The broker ends with the context, and with this process at the latest. ``async with``
    gives an `AsyncMiniBroker`, whose methods are awaited.
    """

    _what = "broker"

    def __init__(
        self,
        *,
        settings: Mapping[str, object] | None = None,
        persona: str | None = None,
        tls: bool | Literal["mutual"] = False,
        sasl: str | None = None,
        seed: SeedSource | None = None,
        fork_server: ForkServerAddress | None = None,
        share: str | None = None,
        guarded: bool = False,
    ) -> None:
        super().__init__(guarded=guarded)
        self._settings = {name: text_of(value) for name, value in (settings or {}).items()}
        self._seed = None if seed is None else read_seed(seed)
        if self._seed is not None:
            self._settings = self._seed.pop("settings") | self._settings
        if persona is not None:
            self._settings["persona"] = persona
        self._tls = tls
        self._sasl = sasl
        self._secured: Secured | None = None
        self._fork_server = fork_server
        self._share = share
        self._lease: Lease | None = None
        self._failures = FailureWarnings()

    async def __aenter__(self) -> AsyncMiniBroker:
        broker = AsyncMiniBroker(self)
        await broker.start()
        return broker

    async def __aexit__(self, *_: object) -> None:
        await in_thread(self.stop, shielded=True)

    # ------------------------------------------------------------------------ start and stop

    def begin(self) -> None:
        """Start without waiting for readiness; `start` waits."""
        if self._lease is None:
            fork_server = self._fork_server or fork_server_of_process()
            settings = self._settings
            if (self._tls or self._sasl is not None) and self._secured is None:
                settings = {**self._secure(settings), **settings}
            self._lease = Lease(fork_server, settings, self._share)

    def start(self) -> Self:
        """Start, and wait until clients can connect.

        Raises `BrokerStartError` with the broker's log.
        """
        self.begin()
        if not self._ready:
            assert self._lease is not None
            try:
                self._ready = self._lease.wait_ready()
                if self._seed is not None:
                    self._create_seed(self._seed)
            except BaseException:
                self._forget_ready()
                self._lease.close()
                self._lease = None
                self._forget_secrets()
                raise
        return self

    def _secure(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Make certificates and a user; return the settings for them."""
        from minibroker.secured import hosts_of, secured, write_files

        made = secured(Path("."), tls=self._tls, sasl=self._sasl)
        made = made._replace(folder=Path(tempfile.mkdtemp(prefix="minibroker-secrets-")))
        addresses = (settings.get(name, "") for name in ("listeners", "advertised.listeners"))
        self._secured = made = write_files(made, hosts_of(",".join(addresses).split(",")))
        return {"listeners": f"{made.protocol}://127.0.0.1:0", **made.settings()}

    def _forget_secrets(self) -> None:
        if self._secured is not None:
            shutil.rmtree(self._secured.folder, ignore_errors=True)
            self._secured = None

    def client_config(self, library: str = "confluent-kafka") -> dict[str, Any]:
        """The configuration of a client for this broker, with certificates and passwords.

        ``library`` is "confluent-kafka", "kafka-python", "aiokafka", "java" or "kafkajs".
        """
        from minibroker.client.configs import client_config
        from minibroker.secured import secured
        from minibroker.token_issuer import issuer_url

        made = self._secured or secured(Path("."))
        made = made._replace(issuer=issuer_url(self.control_url))
        return client_config(made, library, self.bootstrap_servers)

    def stop(self) -> None:
        """Stop, and wait until nothing of the broker is left; a second call does nothing.

        Warns (`BrokerFailed`) of each of its processes that ended by itself, as `check` does.
        """
        self._forget_ready()
        lease, self._lease = self._lease, None
        ended = None if lease is None else lease.stop()
        self._forget_secrets()
        if ended is not None:
            self._failures.warn(ended.log)

    def check(self) -> None:
        """Warn (`BrokerFailed`) of each process that has ended by itself since the last call.

        It was restarted. A process that was killed from outside is no failure.
        """
        self._failures.warn(self.log())

    # ----------------------------------------------------------------------------- addresses

    def ended(self) -> Ended | None:
        """Description of the broker's end, if it ended by itself, e.g. because it was killed."""
        return None if self._lease is None else self._lease.ended()

    def restart(self) -> Self:
        """Stop what is left of the broker and start a new one, at another address."""
        self.stop()
        return self.start()

    @property
    def pid(self) -> int:
        """Process id of the supervisor."""
        return int(str(self._ready_value("pid")))

    # --------------------------------------------------------------------------------- calls

    @property
    def certificates(self) -> BrokerCertificates:
        """The certificate that clients see: ``broker.certificates.present("expired")``."""
        from minibroker.testing.security import BrokerCertificates

        self._refuse_if_guarded("certificates")
        return BrokerCertificates(self.control)

    @property
    def tokens(self) -> BrokerTokens:
        """The token issuer: ``broker.tokens.issue("expired")``, ``broker.tokens.rotate_keys()``."""
        from minibroker.testing.security import BrokerTokens

        self._refuse_if_guarded("tokens")
        return BrokerTokens(self.control)

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, object] | None = None
    ) -> str:
        """Create a topic and return its name; when this returns, every connection knows it."""
        texts = {key: text_of(value) for key, value in (configs or {}).items()}
        self.control.post("v1", "topics", name=name, partitions=partitions, configs=texts or None)
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic; when this returns, no connection knows it."""
        self.control.delete("v1", "topics", name)

    def seed(self, source: SeedSource) -> dict[str, Any]:
        """Create what a TOML file, a folder of them, or a mapping describes; return what it was.

        Topics that exist already are left as they are, and get no records.
        """
        return self._create_seed(read_seed(source))

    def _create_seed(self, seed: Mapping[str, Any]) -> dict[str, Any]:
        answer = self.control.request("POST", "/v1/seed", seed, SEED_S)
        created: dict[str, Any] = json.loads(answer)
        return created

    def compact(self, topic: str) -> None:
        """Compact a topic as far as possible now; when this returns, it is done."""
        self.control.post("v1", "compact", topic)

    def reset(self) -> None:
        """Delete all topics, groups and offsets; clients stay connected."""
        self._refuse_if_guarded("reset()")
        self.control.post("v1", "reset")

    def snapshot(self, name: str | None = None) -> BrokerSnapshot:
        """Take a snapshot of all topics, groups, transactions, configs, users, quotas and ACLs."""
        self._refuse_if_guarded("snapshot()")
        chosen = name or f"snapshot-{secrets.token_hex(8)}"
        return BrokerSnapshot(str(self.control.post("v1", "snapshots", name=chosen)["name"]))

    def restore(self, snapshot: BrokerSnapshot) -> None:
        """Return to a snapshot; connections with a request in flight are closed."""
        self._refuse_if_guarded("restore()")
        self.control.post("v1", "snapshots", snapshot.name, "restore")

    def remove_snapshot(self, snapshot: BrokerSnapshot) -> None:
        """Remove a snapshot."""
        self.control.delete("v1", "snapshots", snapshot.name)

    @contextmanager
    def namespace(self, name: str | None = None) -> Iterator[BrokerNamespace]:
        """Open a namespace: an address at which clients see only what they create there.

        Its topics, groups and ACLs are deleted at the end of the context.
        """
        chosen = name or f"ns-{secrets.token_hex(4)}"
        opened = self.control.post("v1", "namespaces", name=chosen)
        try:
            yield BrokerNamespace(**opened)
        finally:
            self.control.delete("v1", "namespaces", chosen)

    def advance(self, ms: int) -> dict[str, Any]:
        """Advance the broker's clock by ``ms`` milliseconds; return the clock."""
        self._refuse_if_guarded("advance()")
        return self.control.post("v1", "clock", advance_ms=ms)

    def freeze(self, frozen: bool = True) -> dict[str, Any]:
        """Stop the broker's clock, or let it run; return the clock."""
        self._refuse_if_guarded("freeze()")
        return self.control.post("v1", "clock", freeze=frozen)

    def clock(self) -> dict[str, Any]:
        """``now``, ``wall_ms``, ``offset_ms``, ``rate`` and ``frozen``."""
        return self.control.get("v1", "clock")

    def connections(self) -> dict[str, Any]:
        """Connections by listener and by processor, with the slots of each queue."""
        return self.control.get("v1", "connections")

    def groups(self) -> list[dict[str, Any]]:
        """Every group's id, state, protocol type and number of members."""
        groups: list[dict[str, Any]] = self.control.get("v1", "groups")["groups"]
        return groups

    def log(self) -> str:
        """The end of the standard error of the broker's processes."""
        return self._lease.log() if self._lease is not None else ""

    def _refuse_if_guarded(self, call: str) -> None:
        if self._guarded:
            raise SharedBrokerError(
                f"{call} would affect the tests of other xdist workers that use this broker; "
                "start one of your own: with MiniBroker() as broker"
            )


class AsyncMiniBroker:
    """The same broker for asyncio and trio: methods are awaited, addresses are attributes."""

    def __init__(self, broker: MiniBroker) -> None:
        self._broker = broker
        self.create_topic = _awaited(broker.create_topic)
        self.delete_topic = _awaited(broker.delete_topic)
        self.produce = _awaited(broker.produce)
        self.messages = _awaited(broker.messages)
        self.wait_for = _awaited(broker.wait_for)
        self.wait_for_group = _awaited(broker.wait_for_group)
        self.seed = _awaited(broker.seed)
        self.compact = _awaited(broker.compact)
        self.reset = _awaited(broker.reset)
        self.snapshot = _awaited(broker.snapshot)
        self.restore = _awaited(broker.restore)
        self.remove_snapshot = _awaited(broker.remove_snapshot)
        self.advance = _awaited(broker.advance)
        self.freeze = _awaited(broker.freeze)
        self.clock = _awaited(broker.clock)
        self.connections = _awaited(broker.connections)
        self.groups = _awaited(broker.groups)
        self.log = _awaited(broker.log)
        self.check = _awaited(broker.check)
        self.ended = _awaited(broker.ended)
        self.restart = _awaited(broker.restart)
        self.start = _awaited(broker.start)
        self.stop = _awaited(broker.stop)

    @asynccontextmanager
    async def namespace(self, name: str | None = None) -> AsyncIterator[BrokerNamespace]:
        """Open a namespace: an address at which clients see only what they create there."""
        context = self._broker.namespace(name)
        opened = await in_thread(context.__enter__)
        try:
            yield opened
        finally:
            leave = functools.partial(context.__exit__, None, None, None)
            await in_thread(leave, shielded=True)

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` for any Kafka client."""
        return self._broker.bootstrap_servers

    @property
    def control_url(self) -> str:
        """The HTTP control API."""
        return self._broker.control_url

    @property
    def pid(self) -> int:
        """Process id of the supervisor."""
        return self._broker.pid

    def client_config(self, library: str = "confluent-kafka") -> dict[str, Any]:
        """The configuration of a client for this broker, with certificates and passwords."""
        return self._broker.client_config(library)

    @property
    def certificates(self) -> AsyncCertificates:
        """The certificate that clients see."""
        return AsyncCertificates(self._broker.certificates)

    @property
    def tokens(self) -> AsyncTokens:
        """The token issuer."""
        return AsyncTokens(self._broker.tokens)

    @property
    def faults(self) -> AsyncFaults:
        """Rules that make the broker misbehave."""
        return AsyncFaults(self._broker.faults)

    @property
    def journal(self) -> AsyncJournal:
        """What happened."""
        return AsyncJournal(self._broker.journal)

    @property
    def control(self) -> AsyncControl:
        """Calls to the control API that have no method here."""
        return AsyncControl(self._broker.control)


class AsyncControl:
    """The calls of `Control`, to be awaited."""

    def __init__(self, control: Control) -> None:
        self.get = _awaited(control.get)
        self.post = _awaited(control.post)
        self.delete = _awaited(control.delete)


class AsyncCertificates:
    """The calls of `BrokerCertificates`, to be awaited."""

    def __init__(self, certificates: BrokerCertificates) -> None:
        self.present = _awaited(certificates.present)
        self.renew = _awaited(certificates.renew)
        self.create = _awaited(certificates.create)


class AsyncTokens:
    """The calls of `BrokerTokens`, to be awaited."""

    def __init__(self, tokens: BrokerTokens) -> None:
        self.issuer = _awaited(tokens.issuer)
        self.issue = _awaited(tokens.issue)
        self.create = _awaited(tokens.create)
        self.rotate_keys = _awaited(tokens.rotate_keys)


class AsyncJournal:
    """The calls of `RecordedJournal`, to be awaited."""

    def __init__(self, journal: RecordedJournal) -> None:
        self._journal = journal
        self.start = _awaited(journal.start)
        self.stop = _awaited(journal.stop)
        self.entries = _awaited(journal.entries)
        self.wait_for = _awaited(journal.wait_for)
        self.assert_happened = _awaited(journal.assert_happened)
        self.assert_in_order = _awaited(journal.assert_in_order)
        self.assert_absent = _awaited(journal.assert_absent)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await in_thread(self._journal.stop, shielded=True)


class AsyncFaults:
    """The calls of `Faults`, to be awaited; ``async with`` checks that every rule fired."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self.list = _awaited(faults.list)
        self.act = _awaited(faults.act)
        self.clear = _awaited(faults.clear)
        self.check = _awaited(faults.check)

    async def add(self, action: str, /, **fields: object) -> AsyncFaultHandle:
        """Add a rule; when this returns, every connection obeys it."""
        return AsyncFaultHandle(await _awaited(self._faults.add)(action, **fields))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        leave = functools.partial(self._faults.__exit__, kind, error, traceback)
        await in_thread(leave, shielded=True)


class AsyncFaultHandle:
    """The calls of `FaultHandle`, to be awaited."""

    def __init__(self, handle: FaultHandle) -> None:
        self.id = handle.id
        self.rule = handle.rule
        self.view = _awaited(handle.view)
        self.wait = _awaited(handle.wait)
        self.release = _awaited(handle.release)
        self.remove = _awaited(handle.remove)


def _awaited(call: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """Run ``call`` in a thread, so that the caller's event loop continues."""

    @functools.wraps(call)
    async def awaited(*args: P.args, **kwargs: P.kwargs) -> T:
        return await in_thread(functools.partial(call, *args, **kwargs))

    return awaited


async def in_thread(call: Callable[[], T], *, shielded: bool = False) -> T:
    """Run ``call`` in a thread of its own, for the running event loop, asyncio's or trio's.

    ``shielded``: a cancellation is raised only after ``call`` has returned.
    """
    import sniffio

    if sniffio.current_async_library() == "trio":
        import trio

        with trio.CancelScope(shield=shielded):
            # The default limiter is shared with the test's own threads.
            return await trio.to_thread.run_sync(call, limiter=trio.CapacityLimiter(1))
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    # The default executor has few threads: calls that the broker holds would fill it.
    executor = ThreadPoolExecutor(1)
    running = asyncio.get_running_loop().run_in_executor(executor, call)
    executor.shutdown(wait=False)
    if not shielded:
        return await running
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
