"""ACLs and SCRAM users: created, described, deleted, and rejected."""

from __future__ import annotations

from typing import Any, Final

from minibroker_protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from minibroker_protocol.messages.create_acls import AclCreation, CreateAclsRequest
from minibroker_protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from minibroker_protocol.messages.describe_acls import DescribeAclsRequest
from minibroker_protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from system_tests.peers.conversation import SendRequest

SHA_256, SHA_512 = 1, 2


def creation_of(**other: Any) -> CreateAclsRequest:
    """Return a valid ACL, except for the given fields."""
    values: dict[str, Any] = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": "User:x",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    return CreateAclsRequest(creations=[AclCreation(**{**values, **other})])


CREATED: Final[dict[str, dict[str, Any]]] = {
    "valid": {},
    "the same again": {},
    "prefixed": {"resource_pattern_type": 4},
    "of an unknown pattern": {"resource_pattern_type": 9},
    "of an unknown resource": {"resource_type": 99},
    "of an unknown operation": {"operation": 99},
    "of an unknown kind": {"permission_type": 9},
    "of no name": {"resource_name": ""},
    "without a principal": {"principal": ""},
    "of a principal without a type": {"principal": "x"},
    "of a group": {"principal": "Group:g"},
    "of all principals": {"principal": "User:*"},
    "of the cluster": {"resource_type": 4, "resource_name": "kafka-cluster"},
    "of another cluster": {"resource_type": 4, "resource_name": "foo"},
    "of all clusters": {"resource_type": 4, "resource_name": "*"},
    "at a host": {"host": "localhost"},
    "of a user": {"resource_type": 7, "operation": 13},
    "of a transaction": {"resource_type": 5},
    "of a token": {"resource_type": 6},
    "to act on the cluster by a topic": {"operation": 9},
    "to create a group": {"resource_type": 3, "operation": 5},
    "with a slash": {"resource_name": "a/b"},
    "of all": {"resource_name": "*"},
    "denied": {"permission_type": 2},
    "of a prefix *": {"resource_name": "*", "resource_pattern_type": 4},
    "to alter configs": {"operation": 11},
}


def filter_of(**filters: Any) -> dict[str, Any]:
    values = {
        "resource_type_filter": 1,
        "pattern_type_filter": 1,
        "operation": 1,
        "permission_type": 1,
    }
    return {
        "resource_name_filter": None,
        "principal_filter": None,
        "host_filter": None,
        **values,
        **filters,
    }


FILTERS: Final[dict[str, dict[str, Any]]] = {
    "all": {},
    "of a topic": {"resource_type_filter": 2, "resource_name_filter": "t"},
    "that match a topic": {
        "resource_type_filter": 2,
        "resource_name_filter": "tt",
        "pattern_type_filter": 2,
    },
    "that name a topic": {
        "resource_type_filter": 2,
        "resource_name_filter": "t",
        "pattern_type_filter": 3,
    },
    "prefixes": {"pattern_type_filter": 4},
    "of one principal": {"principal_filter": "User:x"},
    "of a malformed principal": {"principal_filter": "zzz"},
    "of a missing resource": {"resource_name_filter": "nope"},
    "of no name": {"resource_name_filter": ""},
    "at a host": {"host_filter": "localhost"},
    "to read": {"operation": 3},
    "denied": {"permission_type": 2},
    "of all": {"resource_name_filter": "*"},
    "of an unknown resource": {"resource_type_filter": 99},
    "of an unknown pattern": {"pattern_type_filter": 99},
    "of an unknown operation": {"operation": 99},
    "of an unknown kind": {"permission_type": 99},
}


def acls(ask: SendRequest) -> None:
    for name, values in CREATED.items():
        ask(name, creation_of(**values), 3)
    ask("none", CreateAclsRequest(creations=[]), 3)
    for name, filters in FILTERS.items():
        for version in (1, 3):
            request = DescribeAclsRequest(**filter_of(**filters))
            ask(f"{name}, described in version {version}", request, version)
    deleted: dict[str, list[dict[str, Any]]] = {
        "of a missing resource": [{"resource_name_filter": "nope"}],
        "of an unknown resource": [{"resource_type_filter": 99}],
        "of a malformed principal": [{"principal_filter": "zzz"}],
        "twice": [{"resource_name_filter": "t", "pattern_type_filter": 3}] * 2,
        "by no filter": [],
        "all": [{}],
    }
    for name, several in deleted.items():
        filters_ = [DeleteAclsFilter(**filter_of(**one)) for one in several]
        ask(f"deleted {name}", DeleteAclsRequest(filters=filters_), 3)
    ask("remaining", DescribeAclsRequest(**filter_of()), 3)


Upserted = tuple[str, int, int, int, int]


def scram(
    upserted: list[Upserted], gone: list[tuple[str, int]]
) -> AlterUserScramCredentialsRequest:
    """Return a request: users with the lengths of their salt and password, and removed users."""
    return AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name=name, mechanism=how) for name, how in gone],
        upsertions=[
            ScramCredentialUpsertion(
                name=name,
                mechanism=how,
                iterations=iterations,
                salt=b"s" * salt,
                salted_password=b"p" * password,
            )
            for name, how, iterations, salt, password in upserted
        ],
    )


def passwords(ask: SendRequest) -> None:
    for name, upserted, gone in (
        ("one", [("a", SHA_256, 4096, 10, 32)], []),
        ("few iterations", [("a", SHA_256, 4095, 10, 32)], []),
        ("many iterations", [("a", SHA_256, 16385, 10, 32)], []),
        ("most iterations", [("a", SHA_256, 16384, 10, 32)], []),
        ("another mechanism", [("a", SHA_512, 4096, 10, 64)], []),
        ("no mechanism", [("a", 0, 4096, 10, 64)], []),
        ("no such mechanism", [("a", 3, 4096, 10, 64)], []),
        ("no name", [("", SHA_256, 4096, 10, 32)], []),
        ("no password", [("e", SHA_256, 4096, 10, 0)], []),
        ("no salt", [("a", SHA_256, 4096, 0, 32)], []),
        ("twice", [("b", SHA_256, 4096, 10, 32)] * 2, []),
        ("upserted and deleted", [("a", SHA_256, 4096, 10, 32)], [("a", SHA_256)]),
        ("deleted without existing", [], [("zz", SHA_256)]),
        ("deleted of no such mechanism", [], [("a", 9)]),
        ("deleted without a name", [], [("", SHA_256)]),
        ("good and bad", [("c", SHA_256, 4096, 10, 32), ("d", SHA_256, 1, 10, 32)], []),
        ("nothing", [], []),
    ):
        ask(name, scram(upserted, gone), 0)
    for name, users in {
        "all": None,
        "none": [],
        "one": ["a"],
        "missing": ["nope"],
        "twice": ["a", "a"],
        "twice and another": ["a", "a", "c"],
        "without a name": [""],
    }.items():
        names = None if users is None else [UserName(name=user) for user in users]
        ask(f"{name}, described", DescribeUserScramCredentialsRequest(users=names), 0)
    for user, how in (("a", SHA_256), ("a", SHA_512), ("c", SHA_256)):
        ask(f"{user} {how} deleted", scram([], [(user, how)]), 0)
    ask("all in the end", DescribeUserScramCredentialsRequest(users=None), 0)


CONVERSATIONS: Final = (acls, passwords)
