import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A process of a workload with Kafka's Java client: it reads options and invocations as lines of
 * JSON, and writes completions. The results have the same meaning as those of
 * minibroker.testing.clients.session.
 */
public final class WorkloadClient {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration POLL = Duration.ofMillis(100);
    private static final Duration NOW = Duration.ofSeconds(1);

    private final JsonNode options;
    private final boolean transactional;
    private final boolean subscribes;
    private final Map<String, Long> positions = new TreeMap<>();
    private final Set<String> moved = new TreeSet<>();
    private KafkaProducer<String, String> producer;
    private KafkaConsumer<String, String> consumer;

    private WorkloadClient(JsonNode options) {
        this.options = options;
        transactional = options.hasNonNull("transactional_id");
        subscribes = options.hasNonNull("group");
        openProducer();
        openConsumer();
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        WorkloadClient client = new WorkloadClient(JSON.readTree(lines.readLine()));
        answers.println(JSON.createObjectNode().put("client", "java " + version()));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            answers.println(JSON.writeValueAsString(client.perform((ObjectNode) JSON.readTree(line))));
        }
        client.consumer.close();
        client.producer.close(NOW);
    }

    private static String version() throws IOException {
        Properties build = new Properties();
        try (InputStream file =
                KafkaProducer.class.getResourceAsStream("/kafka/kafka-version.properties")) {
            build.load(file);
        }
        return build.getProperty("version");
    }

    private Properties connectionSettings() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", options.get("bootstrap_servers").asText());
        if (options.hasNonNull("username")) {
            settings.put("security.protocol", "SASL_PLAINTEXT");
            settings.put("sasl.mechanism", "PLAIN");
            settings.put("sasl.jaas.config", String.format(
                    "org.apache.kafka.common.security.plain.PlainLoginModule required"
                            + " username=\"%s\" password=\"%s\";",
                    options.get("username").asText(), options.get("password").asText()));
        }
        return settings;
    }

    private void openProducer() {
        if (producer != null) {
            producer.close(Duration.ZERO);
        }
        Properties settings = connectionSettings();
        settings.put("enable.idempotence", options.path("idempotence").asText("true"));
        settings.put("delivery.timeout.ms", "20000");
        settings.put("request.timeout.ms", "10000");
        settings.put("max.block.ms", "20000");
        settings.put("enable.metrics.push", "false");
        if (transactional) {
            settings.put("transactional.id", options.get("transactional_id").asText());
            settings.put("transaction.timeout.ms", "20000");
        }
        producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        if (transactional) {
            producer.initTransactions();
        }
    }

    private void openConsumer() {
        if (consumer != null) {
            consumer.close();
        }
        Properties settings = connectionSettings();
        settings.put("isolation.level", options.path("isolation_level").asText("read_committed"));
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", String.valueOf(subscribes));
        settings.put("auto.commit.interval.ms", "100");
        settings.put("fetch.max.wait.ms", "50");
        settings.put("max.poll.records", "20");
        settings.put("session.timeout.ms", "6000");
        settings.put("heartbeat.interval.ms", "1000");
        settings.put("enable.metrics.push", "false");
        if (subscribes) {
            settings.put("group.id", options.get("group").asText());
        }
        consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    private ObjectNode perform(ObjectNode line) {
        line.put("type", "ok");
        try {
            switch (line.get("operation").asText()) {
                case "assign" -> {
                    Map<String, Long> kept = line.path("from_beginning").asBoolean()
                            ? Map.of() : new HashMap<>(positions);
                    positions.clear();
                    for (JsonNode key : line.get("keys")) {
                        positions.put(key.asText(), kept.getOrDefault(key.asText(), 0L));
                    }
                    assign();
                }
                case "subscribe" -> subscribe(line.get("keys"));
                case "reopen" -> {
                    positions.clear();
                    openConsumer();
                    openProducer();
                }
                default -> performSteps(line);
            }
        } catch (Exception failure) {
            line.put("type", "unknown").put("error", failure.toString());
        }
        return line;
    }

    private void performSteps(ObjectNode line) {
        boolean transaction = line.get("operation").asText().equals("txn");
        boolean aborts = line.path("abort").asBoolean();
        Map<String, Long> before = new HashMap<>(positions);
        JsonNode steps = line.remove("steps");
        ArrayNode done = line.putArray("steps");
        line.remove("abort");
        boolean committing = false;
        try {
            if (transaction) {
                producer.beginTransaction();
            }
            for (JsonNode step : steps) {
                done.add(step.has("send") ? send((ObjectNode) step) : poll());
            }
            if (transaction && aborts) {
                line.put("type", "fail");
                producer.abortTransaction();
            } else if (transaction) {
                committing = true;
                producer.commitTransaction();
            }
        } catch (Exception failure) {
            line.put("error", failure.toString());
            line.put("type", resultOf(line.get("operation").asText(), committing));
        }
        if (!line.get("type").asText().equals("ok") && !subscribes && !before.equals(positions)) {
            positions.putAll(before);
            assign();
        }
        if (!moved.isEmpty()) {
            ArrayNode rebalanced = line.putArray("rebalanced");
            moved.forEach(rebalanced::add);
            moved.clear();
        }
    }

    /** The result of a failed operation; the producer is ready for the next one afterwards. */
    private String resultOf(String operation, boolean committing) {
        if (operation.equals("poll")) {
            return "fail";
        }
        if (operation.equals("send")) {
            return "unknown";
        }
        if (committing) {
            openProducer();
            return "unknown";
        }
        try {
            producer.abortTransaction();
        } catch (Exception failure) {
            openProducer();
        }
        return "fail";
    }

    private JsonNode send(ObjectNode step) throws Exception {
        TopicPartition to = partitionOf(step.get("send").asText());
        String value = step.get("value").asText();
        long offset = producer.send(new ProducerRecord<>(to.topic(), to.partition(), null, value))
                .get().offset();
        return step.put("offset", offset);
    }

    private JsonNode poll() {
        ObjectNode step = JSON.createObjectNode();
        ObjectNode polled = step.putObject("poll");
        for (ConsumerRecord<String, String> each : consumer.poll(POLL)) {
            String key = each.topic() + "-" + each.partition();
            polled.withArray("/" + key).addArray()
                    .add(each.offset()).add(Long.parseLong(each.value()));
            if (!subscribes) {
                positions.put(key, each.offset() + 1);
            }
        }
        return step;
    }

    private void assign() {
        consumer.assign(positions.keySet().stream().map(WorkloadClient::partitionOf).toList());
        positions.forEach((key, offset) -> consumer.seek(partitionOf(key), offset));
    }

    private void subscribe(JsonNode keys) {
        Set<String> topics = new TreeSet<>();
        keys.forEach(key -> topics.add(partitionOf(key.asText()).topic()));
        consumer.subscribe(topics, new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                partitions.forEach(each -> moved.add(each.topic() + "-" + each.partition()));
            }

            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                onPartitionsAssigned(partitions);
            }
        });
    }

    private static TopicPartition partitionOf(String key) {
        int at = key.lastIndexOf('-');
        return new TopicPartition(key.substring(0, at), Integer.parseInt(key.substring(at + 1)));
    }
}
