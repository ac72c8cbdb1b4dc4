"""Redpanda's limits in both modes: one acceptor, or three processors that accept themselves."""

from __future__ import annotations

import pytest

from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from system_tests.clients.adapters.confluent import ConfluentClient
from system_tests.clients.model import Record
from system_tests.connections.conftest import Dial, Limited
from system_tests.connections.dialling import Client, counted, gauge, wait_counted
from system_tests.faults.killing import in_same_process, one_of_each_process
from system_tests.harness.brokers import RunningBroker, StartFailed, start_minibroker
from system_tests.harness.control import ask, kill_process
from system_tests.harness.waiting import wait_until

pytestmark = pytest.mark.minibroker

SINGLE = ("acceptor.mode=single", "num.network.threads=3")
SHARDED = ("acceptor.mode=sharded", "num.network.threads=3")
MODES = pytest.mark.parametrize("mode", [SINGLE, SHARDED], ids=["single", "sharded"])
TOTAL = "kafka_connections_max"
PER_IP = "kafka_connections_max_per_ip"
OVERRIDES = "kafka_connections_max_overrides"
CLOSED = "minibroker_connections_closed_total"
BROKER, SET, DELETE = 4, 0, 1


def alter(client: Client, name: str, value: str | None) -> tuple[int, str | None]:
    """Set something for all brokers, or unset it; the error and its text."""
    config = AlterableConfig(name=name, config_operation=DELETE if value is None else SET)
    config.value = value
    resource = AlterConfigsResource(resource_type=BROKER, resource_name="", configs=[config])
    response = client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    (answer,) = response.responses
    return answer.error_code, answer.error_message


def admitted(dial: Dial, broker: RunningBroker, mode: tuple[str, ...], source: str) -> Client:
    """Connect, again if another connection's token is still on its way to its home.

    Between processors it may be when that closed connection no longer counts: a connection that
    overtakes the token is rejected. One acceptor knows better.
    """

    def attempt() -> list[Client]:
        clients = dial(broker, 1, source)
        is_admitted = clients[0].answered()
        assert is_admitted or mode == SHARDED
        return clients if is_admitted else []

    return wait_until(attempt, f"a connection of {source} to be admitted")[0]


@MODES
def test_total_limit_accepts_exactly_that_many_connections(
    mode: tuple[str, ...], limited: Limited, dial: Dial
) -> None:
    broker = limited(*mode, f"{TOTAL}=10")
    clients = [dial(broker, 1, f"127.0.1.{number}")[0] for number in range(1, 11)]
    assert all(client.answered() for client in clients)
    for number in range(1, 21):
        assert dial(broker, 1, f"127.0.2.{number}")[0].is_disconnected()
    assert gauge(broker, CLOSED, reason="kafka_connections_max") == 20
    clients[3].close()
    wait_counted(broker, 9)
    late = admitted(dial, broker, mode, "127.0.3.1")
    rejected = gauge(broker, CLOSED, reason="kafka_connections_max")
    assert rejected == 20 or mode == SHARDED
    assert dial(broker, 1, "127.0.3.2")[0].is_disconnected()
    assert gauge(broker, CLOSED, reason="kafka_connections_max") == rejected + 1
    assert counted(broker) == gauge(broker, "minibroker_connections_open") == 10
    for client in (*clients, late):
        client.close()
    wait_counted(broker, 0)


@MODES
def test_per_ip_limit_and_overrides_apply(
    mode: tuple[str, ...], limited: Limited, dial: Dial
) -> None:
    broker = limited(*mode, f"{PER_IP}=4", f"{OVERRIDES}=127.0.0.2:7,127.0.0.3:0")
    shares = {"127.0.0.2": 7, "127.0.0.3": 0} | {f"127.0.1.{number}": 4 for number in range(1, 9)}
    for source, share in shares.items():
        assert all(client.answered() for client in dial(broker, share, source))
        assert all(client.is_disconnected() for client in dial(broker, 3, source))
    assert counted(broker) == sum(shares.values())
    assert gauge(broker, CLOSED, reason="kafka_connections_max_per_ip") == 3 * len(shares)


@MODES
def test_overrides_without_total_limit_apply(
    mode: tuple[str, ...], limited: Limited, dial: Dial
) -> None:
    broker = limited(*mode, f"{OVERRIDES}=127.0.0.2:2")
    assert all(client.answered() for client in dial(broker, 30, "127.0.0.1"))
    for _ in range(6):
        clients = [admitted(dial, broker, mode, "127.0.0.2") for _ in range(2)]
        assert dial(broker, 1, "127.0.0.2")[0].is_disconnected()
        for client in clients:
            client.close()
        wait_counted(broker, 30)


@MODES
def test_lowered_limit_keeps_open_and_rejects_new_connections(
    mode: tuple[str, ...], limited: Limited, dial: Dial
) -> None:
    broker = limited(*mode)
    (admin,) = dial(broker)
    assert alter(admin, PER_IP, "12") == (0, None)
    clients = dial(broker, 8, "127.0.0.2")
    assert all(client.answered() for client in clients)
    assert alter(admin, PER_IP, "4") == (0, None)
    for number in range(8, 3, -1):
        assert all(client.answered() for client in clients[:number])
        assert all(client.is_disconnected() for client in dial(broker, 4, "127.0.0.2"))
        clients[number - 1].close()
        wait_counted(broker, number)  # those that are left, and the admin
    admitted(dial, broker, mode, "127.0.0.2")
    assert dial(broker, 1, "127.0.0.2")[0].is_disconnected()
    assert alter(admin, PER_IP, None) == (0, None)
    assert all(client.answered() for client in dial(broker, 20, "127.0.0.2"))
    assert alter(admin, PER_IP, "25") == (0, None)
    assert dial(broker, 1, "127.0.0.2")[0].answered()
    assert dial(broker, 1, "127.0.0.2")[0].is_disconnected()


def serves_connections(broker: RunningBroker, name: str) -> bool:
    """Whether a role shares its process with a network processor, or is one."""
    return any(each.startswith("processor") for each in in_same_process(broker, name))


@MODES
def test_no_limit_is_missed_whichever_process_is_killed(
    mode: tuple[str, ...], limited: Limited, dial: Dial
) -> None:
    broker = limited(*mode, f"{TOTAL}=9", f"{PER_IP}=3")
    sources = [f"127.0.0.{number}" for number in (2, 3, 4)]
    clients = [client for source in sources for client in dial(broker, 3, source)]
    assert all(client.answered() for client in clients)
    others = [name for name in one_of_each_process(broker) if not serves_connections(broker, name)]
    for name in others:
        kill_process(broker, name)
        assert all(client.is_disconnected() for client in dial(broker, 3, "127.0.0.5"))
        assert counted(broker) == 9
    for name in ("processor-0", "processor-1", "processor-2"):
        kill_process(broker, name)
        clients = [client for client in clients if client.answered()]
        wait_counted(broker, len(clients))
        for source in sources:
            left = sum(client.socket.getsockname()[0] == source for client in clients)
            clients += dial(broker, 3 - left, source)
        assert all(client.answered() for client in clients)
        for source in (*sources, "127.0.0.5"):
            assert all(client.is_disconnected() for client in dial(broker, 2, source))
        assert counted(broker) == 9
    for client in clients:
        client.close()
    wait_counted(broker, 0)


def test_sharded_mode_rejects_single_acceptor_settings(limited: Limited, dial: Dial) -> None:
    broker = limited(*SHARDED)
    (admin,) = dial(broker)
    for name in ("max.connections", "listener.name.plaintext.max.connection.creation.rate"):
        code, text = alter(admin, name, "5")
        assert code == ErrorCode.INVALID_CONFIG
        assert text is not None
        assert "set acceptor.mode=single, or use kafka_connections_max" in text
    entry = AlterClientQuotasRequestEntryData(
        entity=[EntityData(entity_type="ip", entity_name="127.0.0.2")],
        ops=[OpData(key="connection_creation_rate", value=5.0)],
    )
    request = AlterClientQuotasRequest(entries=[entry], validate_only=False)
    (answer,) = admin.ask(request, 1).entries
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert "set acceptor.mode=single" in (answer.error_message or "")


def test_sharded_start_with_single_acceptor_setting_fails() -> None:
    settings = {"acceptor.mode": "sharded", "max.connections": "5"}
    with pytest.raises(StartFailed, match=r"max.connections=5 \(--set\): not with acceptor.mode"):
        start_minibroker(settings=settings)


@pytest.mark.parametrize("second", [SINGLE, SHARDED], ids=["single", "sharded"])
def test_port_in_use_by_another_broker_is_rejected(
    second: tuple[str, ...], limited: Limited
) -> None:
    first = limited(*SHARDED)
    port = first.address[1]
    settings = dict(pair.split("=") for pair in second)
    with pytest.raises(StartFailed, match=f"127.0.0.1:{port} cannot be bound: .*another one"):
        start_minibroker(settings=settings, listener=f"PLAINTEXT://127.0.0.1:{port}")


def test_connections_api_sums_counts_of_all_processors(limited: Limited, dial: Dial) -> None:
    broker = limited(*SHARDED, f"{TOTAL}=6", f"{OVERRIDES}=127.0.0.2:4")
    clients = dial(broker, 4, "127.0.0.2") + dial(broker, 2, "127.0.0.3")
    assert all(client.answered() for client in clients)
    assert dial(broker, 1, "127.0.0.4")[0].is_disconnected()
    found = ask(broker, "GET", "/v1/connections")
    assert (found["mode"], found["total"], found["limit"]) == ("sharded", 6, 6)
    assert found["listeners"][0]["connections"] == 6
    assert [len(each["connections"]) for each in found["processors"]] == [
        each["connections_total"] for each in found["processors"]
    ]
    shown = {each["ip"]: (each["connections"], each["limit"]) for each in found["addresses"]}
    assert shown == {"127.0.0.2": (4, 4), "127.0.0.3": (2, None)}
    (rejection,) = found["rejections"]
    assert rejection["reason"] == "kafka_connections_max"
    assert rejection["client_address"].startswith("127.0.0.4:")
    kinds = [each["kind"] for each in found["connection_events"]]
    assert (kinds.count("accepted"), kinds.count("refused")) == (7, 1)


def test_real_clients_produce_and_consume(limited: Limited) -> None:
    broker = limited(*SHARDED, f"{TOTAL}=50", f"{PER_IP}=40")
    client = ConfluentClient(broker.bootstrap_servers)
    client.create_topic("orders", 3)
    values = {b"value-%d" % number for number in range(300)}
    client.produce("orders", [Record(value, value) for value in values])
    ends = [client.bounds("orders", partition)[1] for partition in range(3)]
    assert sum(ends) == 300
    found = {
        record.value
        for partition, end in enumerate(ends)
        for record in client.read("orders", partition, 0, end)
    }
    assert found == values
    client.close()
