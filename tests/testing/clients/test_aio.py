from __future__ import annotations

from minibroker.testing import MiniBroker
from minibroker.testing.clients.aio import AioLibrary
from tests.testing.clients.library_scenario import check_group, check_library


def test_transactions_are_sent_and_read(minibroker: MiniBroker, minibroker_topic: str) -> None:
    check_library(AioLibrary, minibroker, minibroker_topic)


def test_member_of_a_group_reads(minibroker: MiniBroker, minibroker_topic: str) -> None:
    check_group(AioLibrary, minibroker, minibroker_topic)
