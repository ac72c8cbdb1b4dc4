"""Names that are no settings of this broker: Kafka's unsupported ones and mistyped ones.

Owns the list of Kafka settings that this broker does not support, so that a properties file written
for Kafka causes one warning, while a misspelled name is rejected; and the measure of similarity of
names: the share of both names' characters that are common and in the same order. It must never hold
a value. Invariants: no unsupported name is also declared in ``definitions`` (a test checks this);
names whose lengths differ too much are not compared, so a long name from a client costs nothing.
Source: Kafka's configuration classes, 2.x to 4.x. Python's ``difflib`` measures similarly, but
importing it takes 7 ms, which every start of a broker would wait for.
"""

from __future__ import annotations

from collections.abc import Iterable

from minibroker.broker.settings.setting import BROKER_SETTINGS, LISTENER_PREFIX


def _names(prefix: str, suffixes: str) -> frozenset[str]:
    return frozenset(prefix + suffix for suffix in suffixes.split())


KNOWN_UNSERVED = frozenset().union(
    _names(
        "",
        """advertised.host.name advertised.port alter.config.policy.class.name
        alter.log.dirs.replication.quota.window.num
        alter.log.dirs.replication.quota.window.size.seconds
        auto.include.jmx.reporter auto.leader.rebalance.enable
        broker.heartbeat.interval.ms broker.id.generation.enable broker.session.timeout.ms
        client.quota.callback.class
        config.providers
        control.plane.listener.name create.topic.policy.class.name
        delete.records.purgatory.purge.interval.requests early.start.listeners
        eligible.leader.replicas.enable fetch.purgatory.purge.interval.requests
        host.name initial.broker.registration.timeout.ms
        inter.broker.protocol.version kafka.metrics.polling.interval.secs
        kafka.metrics.reporters leader.imbalance.check.interval.seconds
        leader.imbalance.per.broker.percentage
        metric.reporters metrics.num.samples
        metrics.recording.level metrics.sample.window.ms
        num.replica.alter.log.dirs.threads offsets.commit.required.acks
        offsets.commit.timeout.ms offsets.load.buffer.size offsets.topic.compression.codec
        password.encoder.cipher.algorithm password.encoder.iterations password.encoder.key.length
        password.encoder.keyfactory.algorithm password.encoder.old.secret password.encoder.secret
        port process.roles
        producer.purgatory.purge.interval.requests
        replication.quota.window.num
        replication.quota.window.size.seconds request.timeout.ms reserved.broker.max.id
        security.providers server.max.startup.time.ms
        socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
        transaction.state.log.load.buffer.size transaction.two.phase.commit.enable
        unclean.leader.election.interval.ms unstable.api.versions.enable
        unstable.feature.versions.enable""",
    ),
    _names("controlled.shutdown.", "enable max.retries retry.backoff.ms"),
    _names(
        "controller.",
        """performance.always.log.threshold.ms performance.sample.period.ms
        quorum.append.linger.ms quorum.auto.join.enable quorum.bootstrap.servers
        quorum.election.backoff.max.ms quorum.election.timeout.ms quorum.fetch.timeout.ms
        quorum.request.timeout.ms quorum.retry.backoff.ms quorum.voters
        socket.timeout.ms""",
    ),
    _names(
        "delegation.token.",
        "master.key",
    ),
    _names("group.coordinator.", "append.linger.ms new.enable threads"),
    _names(
        "group.share.",
        "assignors enable max.groups persister.class.name",
    ),
    _names(
        "log.",
        """dir.failure.timeout.ms flush.offset.checkpoint.interval.ms
        flush.start.offset.checkpoint.interval.ms initial.task.delay.ms
        message.downconversion.enable message.format.version
        message.timestamp.difference.max.ms roll.jitter.hours""",
    ),
    _names(
        "metadata.",
        """log.dir log.max.record.bytes.between.snapshots log.max.snapshot.interval.ms
        log.segment.bytes log.segment.min.bytes log.segment.ms max.idle.interval.ms
        max.retention.bytes max.retention.ms""",
    ),
    _names(
        "replica.",
        """fetch.backoff.ms fetch.max.bytes fetch.min.bytes fetch.response.max.bytes
        fetch.wait.max.ms high.watermark.checkpoint.interval.ms lag.time.max.ms selector.class
        socket.receive.buffer.bytes socket.timeout.ms""",
    ),
    _names(
        "sasl.",
        """client.callback.handler.class login.callback.handler.class login.class
        login.connect.timeout.ms login.read.timeout.ms
        login.refresh.buffer.seconds login.refresh.min.period.seconds login.refresh.window.factor
        login.refresh.window.jitter login.retry.backoff.max.ms login.retry.backoff.ms
        mechanism.controller.protocol mechanism.inter.broker.protocol
        oauthbearer.jwks.endpoint.refresh.ms oauthbearer.jwks.endpoint.retry.backoff.max.ms
        oauthbearer.jwks.endpoint.retry.backoff.ms oauthbearer.scope.claim.name
        oauthbearer.token.endpoint.url server.callback.handler.class""",
    ),
    _names(
        "share.coordinator.",
        """append.linger.ms cold.partition.snapshot.interval.ms load.buffer.size
        state.topic.compression.codec state.topic.min.isr state.topic.prune.interval.ms
        state.topic.replication.factor threads write.timeout.ms""",
    ),
    _names("share.fetch.", "max.fetch.records purgatory.purge.interval.requests"),
    _names(
        "ssl.",
        """cipher.suites endpoint.identification.algorithm
        engine.factory.class keymanager.algorithm keystore.password protocol provider
        secure.random.implementation trustmanager.algorithm truststore.password""",
    ),
    _names(
        "zookeeper.",
        """clientCnxnSocket max.in.flight.requests metadata.migration.enable
        metadata.migration.min.batch.size ssl.cipher.suites ssl.crl.enable ssl.enabled.protocols
        ssl.keystore.type ssl.ocsp.enable ssl.protocol ssl.truststore.password
        ssl.truststore.type""",
    ),
)

_KNOWN_PREFIXES = ("remote.", "rlmm.config.", "rsm.config.", "confluent.", "metrics.jmx.")


def is_unsupported_kafka_setting(name: str) -> bool:
    """Whether this is the name of a Kafka setting that this broker does not support.

    A name for one listener (``listener.name.internal.ssl.keystore.location``) is known if the
    setting after the prefix is known.  A SASL mechanism may precede the setting.
    """
    if name in KNOWN_UNSERVED or name.startswith(_KNOWN_PREFIXES):
        return True
    if not name.startswith(LISTENER_PREFIX):
        return False
    words = name.removeprefix(LISTENER_PREFIX).split(".")
    rests = (".".join(words[start:]) for start in range(1, len(words)))
    return any(rest in KNOWN_UNSERVED or rest in BROKER_SETTINGS for rest in rests)


def similar_names(
    name: str, names: Iterable[str], *, count_max: int, similarity_min: float
) -> list[str]:
    """Return the most similar names, the best first."""
    found = []
    for each in names:
        total = len(name) + len(each)
        if 2 * min(len(name), len(each)) < similarity_min * total:
            continue
        similarity = 2 * _common_characters(name, each) / total if total else 1.0
        if similarity >= similarity_min:
            found.append((similarity, each))
    found.sort(key=lambda pair: pair[0], reverse=True)
    return [each for _, each in found[:count_max]]


def _common_characters(first: str, second: str) -> int:
    """Return the length of the longest common subsequence."""
    before = [0] * (len(second) + 1)
    for character in first:
        row = [0]
        for at, other in enumerate(second):
            row.append(before[at] + 1 if character == other else max(row[at], before[at + 1]))
        before = row
    return before[-1]
