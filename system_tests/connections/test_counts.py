"""Limits of the number of connections: waiting, rejected and closed ones."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from system_tests.connections.conftest import Dial, Limited, as_settings
from system_tests.connections.dialling import (
    Client,
    change_clock,
    counted,
    gauge,
    listener_address,
    wait_counted,
)
from system_tests.faults.killing import COMBINED, SEPARATE
from system_tests.harness.brokers import RunningBroker, StartFailed
from system_tests.harness.control import kill_process

pytestmark = pytest.mark.minibroker

TWO_LISTENERS = "PLAINTEXT://127.0.0.1:0,EXTERNAL://127.0.0.1:0"
EXTERNAL_IS_PLAINTEXT = "listener.security.protocol.map=EXTERNAL:PLAINTEXT"
BROKER, SET = 4, 0


def alter(client: Client, expected: int = 0, **configs: str) -> None:
    """Change configs of all brokers; double underscores stand for dots."""
    resource = AlterConfigsResource(
        resource_type=BROKER,
        resource_name="",
        configs=[
            AlterableConfig(name=name.replace("__", "."), config_operation=SET, value=value)
            for name, value in configs.items()
        ],
    )
    response = client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert [each.error_code for each in response.responses] == [expected], response


def use_in_turn(broker: RunningBroker, clients: list[Client]) -> None:
    """Use each a millisecond after the one before, so that all processes agree on the order."""
    for client in clients:
        assert client.answered()
        change_clock(broker, freeze=True, advance_ms=1)


def test_connection_beyond_per_ip_limit_reads_end_of_file(limited: Limited, dial: Dial) -> None:
    broker = limited("max.connections.per.ip=17")
    for source in ("127.0.0.2", "127.0.0.3"):
        clients = dial(broker, 17, source)
        assert all(client.answered() for client in clients)
        assert all(client.is_disconnected() for client in dial(broker, 2, source))
        clients[0].close()
        wait_counted(broker, 16 if source == "127.0.0.2" else 32)
        (again,) = dial(broker, 1, source)
        assert again.answered()
        assert dial(broker, 1, source)[0].is_disconnected()
        again.close()
        wait_counted(broker, 16 if source == "127.0.0.2" else 32)
    reason = "max_connections_per_ip"
    assert gauge(broker, "minibroker_connections_closed_total", reason=reason) == 6
    assert gauge(broker, "minibroker_acceptor_blocked_seconds_total") == 0


def test_only_addresses_with_override_connect(limited: Limited, dial: Dial) -> None:
    broker = limited(
        "max.connections.per.ip=0", "max.connections.per.ip.overrides=127.0.0.2:5,localhost:1"
    )
    assert all(client.answered() for client in dial(broker, 5, "127.0.0.2"))
    assert dial(broker, 1, "127.0.0.2")[0].is_disconnected()
    assert dial(broker, 1, "127.0.0.1")[0].answered()
    assert dial(broker, 1, "127.0.0.1")[0].is_disconnected()
    assert dial(broker, 1, "127.0.0.3")[0].is_disconnected()


def test_ip_override_with_unresolvable_host_is_rejected(limited: Limited, dial: Dial) -> None:
    name = "max.connections.per.ip.overrides"
    with pytest.raises(StartFailed, match=r"cannot resolve no\.such\.invalid") as caught:
        limited(f"{name}=no.such.invalid:1")
    assert "Traceback" not in str(caught.value)
    assert "did not end" not in str(
        caught.value
    )  # connections that waited for the acceptor were closed at once
    broker = limited()
    (client,) = dial(broker)
    alter(client, max__connections__per__ip__overrides="localhost:9", expected=0)
    alter(client, max__connections__per__ip__overrides="no.such.invalid:1", expected=42)
    alter(client, max__connections__per__ip="0", expected=0)  # there still is the override
    alter(client, max__connections__per__ip__overrides="", expected=42)


def test_at_the_limit_the_next_one_is_connected_but_not_served(
    limited: Limited, dial: Dial
) -> None:
    broker = limited("max.connections=3")
    clients = dial(broker, 3, "127.0.0.2")
    assert all(client.answered() for client in clients)
    waiting = dial(broker, 2, "127.0.0.3")
    for client in waiting:
        client.send_first_request()
    change_clock(broker, freeze=True)
    assert all(client.received_nothing() for client in waiting)
    assert counted(broker) == 3
    for client, following in zip(clients, waiting, strict=False):
        client.close()
        assert following.answered()
    assert gauge(broker, "minibroker_acceptor_blocked_seconds_total", listener="PLAINTEXT") > 0


def test_inter_broker_connection_evicts_least_recently_used(limited: Limited, dial: Dial) -> None:
    own = "listener.name.plaintext.max.connections=2"
    broker = limited("max.connections=4", own, EXTERNAL_IS_PLAINTEXT, listener=TWO_LISTENERS)
    clients = dial(listener_address(broker, "EXTERNAL"), 4, "127.0.0.2")
    use_in_turn(broker, [*clients, clients[0]])
    internal = listener_address(broker, "PLAINTEXT")
    assert all(client.answered() for client in dial(internal, 2))
    assert clients[1].is_disconnected()
    assert clients[2].is_disconnected()
    assert clients[0].answered()
    assert clients[3].answered()
    (third,) = dial(internal)
    third.send_first_request()
    change_clock(broker, freeze=True)
    assert third.received_nothing()
    assert counted(broker) == 4


def test_lowered_limit_sends_the_least_recently_used_away_and_no_more(
    limited: Limited, dial: Dial
) -> None:
    broker = limited()
    clients = dial(broker, 9, "127.0.0.2")
    use_in_turn(broker, clients)
    alter(clients[-1], max__connections="4")
    assert [client.is_disconnected() for client in clients[:5]] == [True] * 5
    assert all(client.answered() for client in clients[5:])
    wait_counted(broker, 4)
    alter(clients[-1], max__connections__per__ip="1", max__connections="10")
    assert all(client.answered() for client in clients[5:])
    assert dial(broker, 1, "127.0.0.2")[0].is_disconnected()
    assert dial(broker, 1, "127.0.0.3")[0].answered()


def test_redpandas_limits_hang_up_at_once(limited: Limited, dial: Dial) -> None:
    broker = limited(
        "kafka_connections_max=4",
        "kafka_connections_max_per_ip=2",
        "kafka_connections_max_overrides=127.0.0.2:1",
        "max.connections=3",
    )
    assert dial(broker, 1, "127.0.0.2")[0].answered()
    assert dial(broker, 1, "127.0.0.2")[0].is_disconnected()
    served = dial(broker, 2, "127.0.0.3")
    assert all(client.answered() for client in served)
    assert dial(broker, 1, "127.0.0.3")[0].is_disconnected()
    (waiting,) = dial(broker, 1, "127.0.0.4")
    waiting.send_first_request()
    change_clock(broker, freeze=True)
    assert waiting.received_nothing()  # a place with Redpanda's limit, none yet with Kafka's
    served[0].close()
    assert waiting.answered()
    closed = "minibroker_connections_closed_total"
    assert gauge(broker, closed, reason="kafka_connections_max_per_ip") == 2


@pytest.mark.parametrize(
    ("layout", "others"),
    [
        (COMBINED, ("acceptor", "controller", "acceptor")),
        (SEPARATE, ("acceptor", "controller", "worker-0", "acceptor")),
    ],
    ids=["combined", "separate"],
)
def test_counts_are_exact_whichever_process_is_killed(
    layout: Mapping[str, str], others: tuple[str, ...], limited: Limited, dial: Dial
) -> None:
    broker = limited(*as_settings(layout), "max.connections.per.ip=4")
    clients = dial(broker, 4, "127.0.0.2")
    assert all(client.answered() for client in clients)
    for name in others:
        kill_process(broker, name)
        assert dial(broker, 1, "127.0.0.2")[0].is_disconnected()
        assert counted(broker) == 4
    kill_process(broker, "processor-0")
    wait_counted(broker, 2)  # round robin: it had every second one
    clients += dial(broker, 2, "127.0.0.2")
    assert sum(client.answered() for client in clients) == 4
    assert dial(broker, 1, "127.0.0.2")[0].is_disconnected()
    for client in clients:
        client.close()
    wait_counted(broker, 0)
