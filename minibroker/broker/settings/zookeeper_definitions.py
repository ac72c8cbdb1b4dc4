"""Settings of the config store on ZooKeeper: address, timeouts and credentials.

Owns only the declarations; it must never know how a session works.  The invariant: names from Kafka
2.x and 3.x have Kafka's meaning, except that keystores and truststores are PEM files.  Kafka reads
digest credentials from a JAAS file, so the two settings for them are not Kafka's.
"""

from __future__ import annotations

from minibroker.broker.settings.setting import setting
from minibroker.broker.settings.types import (
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
    doc="The ZooKeeper servers, as host:port,host:port/chroot. The cluster's metadata is stored "
    "below the chroot, in Kafka's layout. Requires ZooKeeper 3.6 or newer and "
    "`pip install minibroker[zookeeper]`.",
)
ZOOKEEPER_SESSION_TIMEOUT_MS = setting(
    "zookeeper.session.timeout.ms",
    INT,
    default=18_000,
    valid=at_least(100),
    doc="The timeout of the ZooKeeper session, in milliseconds; the server limits its range.",
)
ZOOKEEPER_CONNECTION_TIMEOUT_MS = setting(
    "zookeeper.connection.timeout.ms",
    optional(INT),
    default=None,
    default_text="zookeeper.session.timeout.ms",
    valid=at_least(1),
    doc="How long the broker waits for ZooKeeper at startup, and for a change while disconnected, "
    "in milliseconds of real time.",
)
ZOOKEEPER_SET_ACL = setting(
    "zookeeper.set.acl",
    BOOLEAN,
    default=False,
    doc="Whether the broker creates znodes with ACLs, so that only clients with its credentials "
    "can change them, and read the configs of users and brokers.",
)
ZOOKEEPER_DIGEST_USERNAME = setting(
    "zookeeper.digest.username",
    _OPTIONAL_STRING,
    default=None,
    doc="The user name for ZooKeeper's digest authentication. Not a Kafka setting.",
)
ZOOKEEPER_DIGEST_PASSWORD = setting(
    "zookeeper.digest.password",
    _OPTIONAL_PASSWORD,
    default=None,
    doc="The password for ZooKeeper's digest authentication. Not a Kafka setting.",
)
ZOOKEEPER_SSL_CLIENT_ENABLE = setting(
    "zookeeper.ssl.client.enable",
    BOOLEAN,
    default=False,
    doc="Whether to connect to ZooKeeper with TLS.",
)
ZOOKEEPER_SSL_TRUSTSTORE_LOCATION = setting(
    "zookeeper.ssl.truststore.location",
    _OPTIONAL_STRING,
    default=None,
    default_text="the system's certificate authorities",
    doc="A PEM file with the certificate authorities that sign ZooKeeper's certificate.",
)
ZOOKEEPER_SSL_KEYSTORE_LOCATION = setting(
    "zookeeper.ssl.keystore.location",
    _OPTIONAL_STRING,
    default=None,
    doc="A PEM file with the broker's private key and certificate chain, for servers that require "
    "client certificates.",
)
ZOOKEEPER_SSL_KEYSTORE_PASSWORD = setting(
    "zookeeper.ssl.keystore.password",
    _OPTIONAL_PASSWORD,
    default=None,
    doc="The password of the private key in `zookeeper.ssl.keystore.location`, if it is encrypted.",
)
ZOOKEEPER_SSL_ENDPOINT_IDENTIFICATION_ALGORITHM = setting(
    "zookeeper.ssl.endpoint.identification.algorithm",
    STRING,
    default="HTTPS",
    valid=one_of("HTTPS", "https", ""),
    doc="Whether the server's certificate must match its hostname; an empty value disables the "
    "check.",
)
