from __future__ import annotations

from dataclasses import replace

import pytest

from minibroker.lab.verdicts.judging import RuleOutcome
from minibroker.lab.verdicts.version_rules import REFUSALS_MAX
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataResponse
from minibroker_protocol.registry import ApiKey
from tests.lab.verdicts.written import WrittenJournal

VERSIONS = {ApiKey.API_VERSIONS: (0, 4), ApiKey.METADATA: (4, 9)}


def test_advertised_version_is_kept() -> None:
    journal = WrittenJournal()
    journal.ask_versions("1", VERSIONS)
    journal.ask_metadata("1")
    assert journal.findings("advertised-versions") == []


@pytest.mark.parametrize("version", [3, 10])
def test_version_outside_of_the_range_is_found(version: int) -> None:
    journal = WrittenJournal()
    journal.ask_versions("1", VERSIONS)
    journal.ask("1", MetadataRequest(topics=[]), version, MetadataResponse())
    assert journal.findings("advertised-versions") == [
        f"sent Metadata v{version}; versions 4 to 9 exist"
    ]


def test_api_that_was_not_advertised_is_found() -> None:
    journal = WrittenJournal()
    journal.ask_versions("1", {ApiKey.API_VERSIONS: (0, 4)})
    journal.ask_metadata("1")
    assert journal.findings("advertised-versions") == ["sent Metadata v9, which was not advertised"]


def test_connection_without_api_versions_is_judged_by_another() -> None:
    journal = WrittenJournal()
    journal.ask_versions("1", VERSIONS)
    journal.ask("2", MetadataRequest(topics=[]), 10, MetadataResponse())
    assert len(journal.findings("advertised-versions")) == 1


def test_client_without_api_versions_is_no_situation() -> None:
    journal = WrittenJournal()
    journal.ask_metadata("1")
    assert journal.verdict("advertised-versions").outcome is RuleOutcome.NOT_OBSERVED
    assert journal.verdict("software-name").outcome is RuleOutcome.NOT_OBSERVED


def refuse(journal: WrittenJournal, version: int, connection: str = "1") -> None:
    known = [ApiVersion(api_key=18, min_version=0, max_version=3)]
    response = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=known)
    journal.ask(connection, ApiVersionsRequest(), version, response)


def ask(journal: WrittenJournal, version: int, connection: str = "1") -> None:
    journal.ask(connection, ApiVersionsRequest(), version, ApiVersionsResponse())


@pytest.mark.parametrize("version", [0, 3])
def test_fallback_to_a_version_that_exists_is_kept(version: int) -> None:
    journal = WrittenJournal()
    refuse(journal, 4)
    ask(journal, version, "2")
    assert journal.findings("api-versions-fallback") == []


def test_fallback_to_a_version_that_does_not_exist_is_found() -> None:
    journal = WrittenJournal()
    refuse(journal, 4)
    refuse(journal, 5)
    assert len(journal.findings("api-versions-fallback")) == 1


def test_refused_version_that_is_repeated_is_found() -> None:
    journal = WrittenJournal()
    for number in range(REFUSALS_MAX):
        refuse(journal, 4, str(number))
    assert journal.findings("api-versions-fallback") == [
        "sent ApiVersions v4 10 times, which was refused"
    ]


def test_refused_version_on_several_connections_at_once_is_kept() -> None:
    journal = WrittenJournal()
    for connection in ("1", "2", "3"):
        refuse(journal, 4, connection)
    for connection in ("1", "2", "3"):
        ask(journal, 0, connection)
    assert journal.findings("api-versions-fallback") == []


def test_answer_in_version_0_to_a_version_that_is_too_new_is_read() -> None:
    journal = WrittenJournal()
    sent = journal.send("1", ApiVersionsRequest(), 4)
    response = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    answer = journal.answer(replace(sent, version=0), response)
    journal.entries[-1] = replace(answer, version=4)
    ask(journal, 2)
    assert journal.findings("api-versions-fallback") == []


def test_client_that_is_never_refused_is_no_situation() -> None:
    journal = WrittenJournal()
    ask(journal, 3)
    ask(journal, 3)
    assert journal.verdict("api-versions-fallback").outcome is RuleOutcome.NOT_OBSERVED


def test_software_name_is_kept() -> None:
    journal = WrittenJournal()
    journal.ask_versions("1", VERSIONS)
    assert journal.findings("software-name") == []


def test_empty_software_name_is_found() -> None:
    journal = WrittenJournal()
    request = ApiVersionsRequest(client_software_name="", client_software_version="1 0")
    journal.ask("1", request, 3, ApiVersionsResponse())
    assert journal.findings("software-name") == [
        "client_software_name is ''",
        "client_software_version is '1 0'",
    ]


def test_old_api_versions_without_a_software_name_is_found() -> None:
    journal = WrittenJournal()
    keys = [ApiVersion(api_key=18, min_version=0, max_version=4)]
    journal.ask("1", ApiVersionsRequest(), 2, ApiVersionsResponse(api_keys=keys))
    assert len(journal.findings("software-name")) == 1


def test_request_without_a_client_id_is_found() -> None:
    journal = WrittenJournal()
    journal.ask_metadata("1")
    assert journal.findings("client-id") == []
    journal.client_id = None
    journal.ask_metadata("1")
    assert journal.findings("client-id") == ["sent Metadata v9 without a client id"]


def test_many_clients_with_one_id_that_fall_back_later_are_kept() -> None:
    journal = WrittenJournal()
    for number in range(2 * REFUSALS_MAX):
        refuse(journal, 4, str(number))
    for number in range(2 * REFUSALS_MAX):
        ask(journal, 3, str(number))
    assert journal.findings("api-versions-fallback") == []
