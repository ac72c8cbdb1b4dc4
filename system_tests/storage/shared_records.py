"""A share group whose member gets the same records after another broker has the group's logs."""

from __future__ import annotations

from typing import Any, Final

from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.records import Record, build_batch
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.waiting import wait_until
from system_tests.peers.records import produce
from system_tests.peers.share_groups import acknowledge, beat, fetch
from tests.broker.network.raw_client import RawClient

SHARE_GROUP: Final = "sharers"
MEMBER: Final[dict[str, Any]] = {"group_id": SHARE_GROUP, "member_id": "s"}
ACCEPT, RELEASE, REJECT = (1,), (2,), (3,)

Acquired = list[tuple[int, int, int]]
"""First and last offset, and delivery count."""


class SharedRecords:
    """The member, and six records of a partition of a topic."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._epoch = 0

    def begin(self, broker: RunningBroker) -> None:
        """Join, and acknowledge some records in each way; keep others."""
        reset = AlterableConfig(name="share.auto.offset.reset", value="earliest")
        resource = AlterConfigsResource(
            resource_type=32, resource_name=SHARE_GROUP, configs=[reset]
        )
        with RawClient(broker.bootstrap_servers) as client:
            client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
            records = build_batch([Record(0, 1, None, b"%d" % at) for at in range(6)])
            produced = client.ask(produce(self._topic, records), 9)
            assert produced.responses[0].partition_responses[0].error_code == ErrorCode.NONE
            self._join(client)
            self._assert_acquires(client, [(0, 5, 1)])
            self._acknowledge(client, (0, 1, ACCEPT), (2, 2, RELEASE), (3, 3, REJECT))

    def continue_there(self, broker: RunningBroker) -> None:
        """What was released, or kept until the connection ended, has its delivery count."""
        with RawClient(broker.bootstrap_servers) as client:
            self._assert_member_is_known(client)
            self._assert_acquires(client, [(2, 2, 2), (4, 5, 2)])
            self._acknowledge(client, (2, 2, RELEASE), (4, 4, ACCEPT), (5, 5, REJECT))

    def end(self, broker: RunningBroker) -> None:
        """Only the released record is left."""
        with RawClient(broker.bootstrap_servers) as client:
            self._assert_member_is_known(client)
            self._assert_acquires(client, [(2, 2, 3)])

    def _join(self, client: RawClient) -> None:
        def is_assigned() -> bool:
            answer = self._beat(client, subscribed_topic_names=[self._topic])
            self._epoch = answer.member_epoch
            return bool(answer.assignment is not None and answer.assignment.topic_partitions)

        wait_until(is_assigned, "an assignment", pause_s=0.2)

    def _assert_member_is_known(self, client: RawClient) -> None:
        answer = self._beat(client)
        assert (answer.error_code, answer.member_epoch) == (ErrorCode.NONE, self._epoch)

    def _beat(self, client: RawClient, **fields: Any) -> Any:
        """The answer to a heartbeat, as soon as the group is loaded."""
        loading = {
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.NOT_COORDINATOR,
        }

        def answer() -> Any:
            client.ask(FindCoordinatorRequest(coordinator_keys=[SHARE_GROUP]), 4)
            found = client.ask(beat("s", self._epoch, SHARE_GROUP, **fields), 1)
            return None if found.error_code in loading else found

        return wait_until(answer, "the group to be loaded")

    def _topic_id(self, client: RawClient) -> bytes:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=self._topic)])
        return bytes(client.ask(request, 12).topics[0].topic_id)

    def _assert_acquires(self, client: RawClient, expected: Acquired) -> None:
        found = self._acquire(client)
        assert found == expected, f"acquired {found}, not {expected}"

    def _acquire(self, client: RawClient) -> Acquired:
        """What the first fetch of a session gets."""
        topic_id = self._topic_id(client)

        def found() -> Acquired:
            answer = client.ask(fetch(topic_id, 0, max_wait_ms=1000, **MEMBER), 2)
            assert answer.error_code == ErrorCode.NONE, answer
            return [
                (each.first_offset, each.last_offset, each.delivery_count)
                for topic in answer.responses
                for partition in topic.partitions
                for each in partition.acquired_records
            ]

        return wait_until(found, "records")

    def _acknowledge(self, client: RawClient, *acks: tuple[int, int, tuple[int, ...]]) -> None:
        answer = client.ask(acknowledge(self._topic_id(client), 1, *acks, **MEMBER), 2)
        (result,) = [each for topic in answer.responses for each in topic.partitions]
        assert (answer.error_code, result.error_code) == (ErrorCode.NONE, ErrorCode.NONE)
