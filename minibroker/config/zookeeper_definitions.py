"""Settings of the config store on ZooKeeper: where it is, how long to wait, who we are to it.

Owns the declarations and nothing else; it must never know how a session is kept.  The invariant:
names that Kafka 2.x and 3.x have mean what they mean there, key and trust stores being PEM files.
Kafka takes digest credentials from a JAAS file, so their two names here are our own.
"""

from __future__ import annotations

from minibroker.config.setting import setting
from minibroker.config.types import (
    BOOLEAN,
    CONNECT_STRING,
    INT,
    PASSWORD,
    STRING,
    at_least,
    one_of,
    optional,
)

_OPTIONAL_STRING = optional(STRING)
_OPTIONAL_PASSWORD = optional(PASSWORD)

ZOOKEEPER_CONNECT = setting(
    "zookeeper.connect",
    optional(CONNECT_STRING),
    default=None,
    default_text="none: the config store is a file in the data directory",
    doc="ZooKeeper's servers as host:port,host:port/chroot; the cluster's facts are then kept "
    "there, below the chroot, in Kafka's layout. ZooKeeper 3.6 or newer; needs "
    "`pip install minibroker[zookeeper]`.",
)
ZOOKEEPER_SESSION_TIMEOUT_MS = setting(
    "zookeeper.session.timeout.ms",
    INT,
    default=18_000,
    valid=at_least(100),
    doc="After how long ZooKeeper takes a silent broker for gone, in milliseconds; the server has "
    "bounds of its own.",
)
ZOOKEEPER_CONNECTION_TIMEOUT_MS = setting(
    "zookeeper.connection.timeout.ms",
    optional(INT),
    default=None,
    default_text="zookeeper.session.timeout.ms",
    valid=at_least(1),
    doc="How long a start, and a change while the connection is lost, waits for ZooKeeper, in "
    "milliseconds of real time.",
)
ZOOKEEPER_SET_ACL = setting(
    "zookeeper.set.acl",
    BOOLEAN,
    default=False,
    doc="Whether nodes are made so that only who has our credentials may change them; the configs "
    "of users and brokers can then not be read by others either.",
)
ZOOKEEPER_DIGEST_USERNAME = setting(
    "zookeeper.digest.username",
    _OPTIONAL_STRING,
    default=None,
    doc="The user of ZooKeeper's digest authentication. Not a Kafka setting.",
)
ZOOKEEPER_DIGEST_PASSWORD = setting(
    "zookeeper.digest.password",
    _OPTIONAL_PASSWORD,
    default=None,
    doc="The password of that user. Not a Kafka setting.",
)
ZOOKEEPER_SSL_CLIENT_ENABLE = setting(
    "zookeeper.ssl.client.enable",
    BOOLEAN,
    default=False,
    doc="Whether to speak TLS with ZooKeeper.",
)
ZOOKEEPER_SSL_TRUSTSTORE_LOCATION = setting(
    "zookeeper.ssl.truststore.location",
    _OPTIONAL_STRING,
    default=None,
    default_text="the system's authorities",
    doc="A PEM file with the certificates of the authorities that may vouch for ZooKeeper.",
)
ZOOKEEPER_SSL_KEYSTORE_LOCATION = setting(
    "zookeeper.ssl.keystore.location",
    _OPTIONAL_STRING,
    default=None,
    doc="A PEM file with our key and the chain of its certificate, for servers that want one.",
)
ZOOKEEPER_SSL_KEYSTORE_PASSWORD = setting(
    "zookeeper.ssl.keystore.password",
    _OPTIONAL_PASSWORD,
    default=None,
    doc="The password of the key in that file, if it has one.",
)
ZOOKEEPER_SSL_ENDPOINT_IDENTIFICATION_ALGORITHM = setting(
    "zookeeper.ssl.endpoint.identification.algorithm",
    STRING,
    default="HTTPS",
    valid=one_of("HTTPS", "https", ""),
    doc="Whether the server's certificate must bear its host's name; an empty value takes any.",
)
