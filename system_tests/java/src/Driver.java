import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Apache Kafka's own client behind lines of JSON: one request on standard input, one answer on
 * standard output.
 *
 * <p>It owns the clients it opened and nothing else; what is expected of them is known only to the
 * Python side. An error that Kafka has a number for is answered as {"code": n}, any other as
 * {"failed": text}. Everything happens on one thread, so a member takes part in a rebalance only
 * while it is polled.
 */
public final class Driver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration PATIENCE = Duration.ofSeconds(20);

    private final Map<String, Object> common = new HashMap<>();
    private final Admin admin;
    private final Map<String, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();
    private final Map<Integer, Member> members = new HashMap<>();
    private KafkaConsumer<byte[], byte[]> reader;
    private int nextMember = 1;

    private Driver(String bootstrapServers, String clientId) {
        common.put("bootstrap.servers", bootstrapServers);
        common.put("client.id", clientId);
        common.put("enable.metrics.push", "false");
        admin = Admin.create(with(Map.of()));
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        Driver driver = new Driver(arguments[0], arguments[1]);
        BufferedReader requests =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            answers.println(JSON.writeValueAsString(driver.answer(JSON.readTree(line))));
        }
        driver.close();
    }

    private ObjectNode answer(JsonNode request) {
        ObjectNode answer = JSON.createObjectNode();
        try {
            answer.set("result", JSON.valueToTree(perform(request)));
        } catch (Exception thrown) {
            Throwable cause = thrown instanceof ExecutionException ? thrown.getCause() : thrown;
            Errors error = Errors.forException(cause);
            if (error != Errors.UNKNOWN_SERVER_ERROR) {
                answer.put("code", error.code());
            } else if (cause instanceof org.apache.kafka.clients.consumer.OffsetOutOfRangeException) {
                answer.put("code", Errors.OFFSET_OUT_OF_RANGE.code());
            }
            answer.put("failed", cause.toString());
        }
        return answer;
    }

    private Object perform(JsonNode request) throws Exception {
        String topic = request.path("topic").asText();
        int partition = request.path("partition").asInt();
        String group = request.path("group").asText();
        return switch (request.get("op").asText()) {
            case "create_topic" -> createTopic(request);
            case "delete_topic" -> admin.deleteTopics(List.of(topic)).all().get();
            case "topics" -> admin.listTopics().names().get();
            case "leaders" -> leaders(topic);
            case "configs" -> configs(request);
            case "cluster" -> cluster();
            case "groups" ->
                    admin.listGroups().all().get().stream().map(each -> each.groupId()).toList();
            case "describe_group" -> describeGroup(group);
            case "produce" -> produce(request);
            case "read" -> read(topic, partition, request.get("offset").asLong(),
                    request.get("count").asInt());
            case "bounds" -> {
                TopicPartition at = new TopicPartition(topic, partition);
                yield List.of(reader().beginningOffsets(List.of(at)).get(at),
                        reader().endOffsets(List.of(at)).get(at));
            }
            case "offset_at" -> {
                TopicPartition at = new TopicPartition(topic, partition);
                OffsetAndTimestamp found = reader()
                        .offsetsForTimes(Map.of(at, request.get("timestamp_ms").asLong())).get(at);
                yield found == null ? null : found.offset();
            }
            case "join" -> join(request);
            case "poll" -> member(request).poll(request.get("timeout_ms").asLong());
            case "commit" -> {
                member(request).consumer.commitSync(PATIENCE);
                yield null;
            }
            case "committed" -> {
                TopicPartition at = new TopicPartition(topic, partition);
                OffsetAndMetadata found = member(request).consumer.committed(Set.of(at)).get(at);
                yield found == null ? null : found.offset();
            }
            case "leave" -> {
                member(request).consumer.close();
                yield null;
            }
            default -> throw new IllegalArgumentException("no such request: " + request);
        };
    }

    private Object createTopic(JsonNode request) throws Exception {
        NewTopic topic = new NewTopic(request.get("topic").asText(),
                request.get("partitions").asInt(), (short) request.get("replicas").asInt());
        Map<String, String> configs = new HashMap<>();
        request.get("configs").properties()
                .forEach(entry -> configs.put(entry.getKey(), entry.getValue().asText()));
        return admin.createTopics(List.of(topic.configs(configs))).all().get();
    }

    private Object leaders(String topic) throws Exception {
        TopicDescription found = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        Map<Integer, Integer> leaders = new HashMap<>();
        for (TopicPartitionInfo each : found.partitions()) {
            leaders.put(each.partition(), each.leader() == null ? -1 : each.leader().id());
        }
        return leaders;
    }

    private Object configs(JsonNode request) throws Exception {
        ConfigResource resource = new ConfigResource(
                ConfigResource.Type.valueOf(request.get("kind").asText()),
                request.get("name").asText());
        Config found = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        Map<String, String> values = new HashMap<>();
        found.entries().forEach(entry -> values.put(entry.name(), entry.value()));
        return values;
    }

    private Object cluster() throws Exception {
        var seen = admin.describeCluster();
        ArrayNode brokers = JSON.createArrayNode();
        for (Node node : seen.nodes().get()) {
            brokers.addArray().add(node.id()).add(node.host()).add(node.port());
        }
        ObjectNode cluster = JSON.createObjectNode();
        cluster.put("cluster_id", seen.clusterId().get());
        cluster.put("controller_id", seen.controller().get().id());
        cluster.set("brokers", brokers);
        return cluster;
    }

    private Object describeGroup(String group) throws Exception {
        ConsumerGroupDescription seen =
                admin.describeConsumerGroups(List.of(group)).all().get().get(group);
        ArrayNode described = JSON.createArrayNode();
        for (MemberDescription each : seen.members()) {
            ObjectNode member = described.addObject();
            member.put("client_id", each.clientId());
            member.put("instance_id", each.groupInstanceId().orElse(null));
            member.set("partitions", pairs(each.assignment().topicPartitions()));
        }
        ObjectNode answer = JSON.createObjectNode();
        answer.put("state", seen.groupState().name());
        answer.set("members", described);
        return answer;
    }

    private Object produce(JsonNode request) throws Exception {
        String wanted = request.get("codec").asText() + request.get("acks") + request.get("idempotent");
        KafkaProducer<byte[], byte[]> producer = producers.computeIfAbsent(wanted, ignored ->
                new KafkaProducer<>(with(Map.of(
                        "compression.type", request.get("codec").asText(),
                        "acks", request.get("acks").asText(),
                        "enable.idempotence", request.get("idempotent").asBoolean(),
                        "max.request.size", request.get("max_bytes").asInt(),
                        "linger.ms", 5)), new ByteArraySerializer(), new ByteArraySerializer()));
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode each : request.get("records")) {
            List<Header> headers = new ArrayList<>();
            for (JsonNode header : each.get(2)) {
                headers.add(new RecordHeader(header.get(0).asText(), bytes(header.get(1))));
            }
            Long timestamp = each.get(3).isNull() ? null : each.get(3).asLong();
            sent.add(producer.send(new ProducerRecord<>(request.get("topic").asText(),
                    request.get("partition").asInt(), timestamp, bytes(each.get(0)),
                    bytes(each.get(1)), headers)));
        }
        List<Long> offsets = new ArrayList<>();
        for (Future<RecordMetadata> each : sent) {
            RecordMetadata metadata = each.get();
            offsets.add(metadata.hasOffset() ? metadata.offset() : -1L);
        }
        return offsets;
    }

    private Object read(String topic, int partition, long offset, int count) {
        TopicPartition at = new TopicPartition(topic, partition);
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        ArrayNode seen = JSON.createArrayNode();
        reader().assign(List.of(at));
        try {
            reader().seek(at, offset);
            while (seen.size() < count && System.nanoTime() < deadline) {
                reader().poll(Duration.ofMillis(100)).forEach(each -> seen.add(stored(each)));
            }
        } finally {
            reader().unsubscribe();
        }
        return seen;
    }

    private KafkaConsumer<byte[], byte[]> reader() {
        if (reader == null) {
            reader = consumer(Map.of("auto.offset.reset", "none",
                    "max.partition.fetch.bytes", 16 * 1024 * 1024));
        }
        return reader;
    }

    private Object join(JsonNode request) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("group.id", request.get("group").asText());
        settings.put("partition.assignment.strategy", "range".equals(request.get("assignor").asText())
                ? "org.apache.kafka.clients.consumer.RangeAssignor"
                : "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
        settings.put("auto.offset.reset", request.get("start").asText());
        settings.put("enable.auto.commit", false);
        settings.put("fetch.max.wait.ms", request.get("max_wait_ms").asInt());
        settings.put("session.timeout.ms", request.get("session_ms").asInt());
        settings.put("heartbeat.interval.ms", request.get("heartbeat_ms").asInt());
        if (!request.get("instance_id").isNull()) {
            settings.put("group.instance.id", request.get("instance_id").asText());
        }
        Member member = new Member(consumer(settings));
        member.consumer.subscribe(List.of(request.get("topic").asText()), member);
        members.put(nextMember, member);
        return nextMember++;
    }

    private Member member(JsonNode request) {
        return members.get(request.get("member").asInt());
    }

    private KafkaConsumer<byte[], byte[]> consumer(Map<String, Object> settings) {
        return new KafkaConsumer<>(
                with(settings), new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private Properties with(Map<String, Object> settings) {
        Properties all = new Properties();
        all.putAll(common);
        all.putAll(settings);
        return all;
    }

    private void close() {
        members.values().forEach(each -> each.consumer.close());
        producers.values().forEach(each -> each.close(Duration.ofSeconds(2)));
        if (reader != null) {
            reader.close();
        }
        admin.close(Duration.ofSeconds(2));
    }

    private static ObjectNode stored(ConsumerRecord<byte[], byte[]> record) {
        ObjectNode node = JSON.createObjectNode();
        node.put("topic", record.topic());
        node.put("partition", record.partition());
        node.put("offset", record.offset());
        node.put("timestamp_ms", record.timestamp());
        node.put("key", text(record.key()));
        node.put("value", text(record.value()));
        ArrayNode headers = node.putArray("headers");
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(text(header.value()));
        }
        return node;
    }

    private static ArrayNode pairs(Collection<TopicPartition> partitions) {
        ArrayNode pairs = JSON.createArrayNode();
        partitions.forEach(each -> pairs.addArray().add(each.topic()).add(each.partition()));
        return pairs;
    }

    private static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }

    /** A consumer in a group, which commits what it has handed over when partitions are taken. */
    private static final class Member implements ConsumerRebalanceListener {
        private final KafkaConsumer<byte[], byte[]> consumer;
        private int assignments;

        private Member(KafkaConsumer<byte[], byte[]> consumer) {
            this.consumer = consumer;
        }

        private Object poll(long timeoutMs) {
            ObjectNode answer = JSON.createObjectNode();
            ArrayNode records = answer.putArray("records");
            consumer.poll(Duration.ofMillis(timeoutMs)).forEach(each -> records.add(stored(each)));
            answer.set("assignment", pairs(consumer.assignment()));
            answer.put("assignments", assignments);
            return answer;
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            assignments++;
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            consumer.commitSync(PATIENCE);
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            // Another member has them now; there is nothing left to commit.
        }
    }
}
